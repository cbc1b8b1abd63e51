"""Which file holds a tensor: asked one by one, and as a table of all."""

from __future__ import annotations

import pytest

import ckptcheck
from ckptcheck.checkpoint import files_of_tensors
from ckptcheck.checkpoint.files_of_tensors import FEW, FilesOfTensors
from tests.factories.checkpoint_cases import CHECKPOINTS

NAMES = {"one": {"a": 1, "both": 1}, "two": {"b": 2, "both": 2}}
TABLE = {"a": "one", "b": "two", "both": "two"}


def test_each_way_of_asking_gives_the_last_file() -> None:
    assert {name: FilesOfTensors(NAMES)[name] for name in TABLE} == TABLE
    places = FilesOfTensors(NAMES)
    assert (dict(places.items()), set(places), sorted(places.values())) == (TABLE, set(TABLE), ["one", "two", "two"])
    assert (len(places), "both" in places, "none" in places, places == TABLE) == (3, True, False, True)


def test_few_make_no_table_and_many_do() -> None:
    places = FilesOfTensors(NAMES)
    for _ in range(FEW):
        assert places["both"] == "two"
    assert "table" not in vars(places)
    assert places["both"] == "two"
    assert "table" in vars(places)


@pytest.mark.parametrize("asked", [0, FEW])
def test_a_tensor_that_no_file_holds_has_none(asked: int) -> None:
    places = FilesOfTensors(NAMES)
    for _ in range(asked):
        places["a"]
    assert places.get("none") is None
    with pytest.raises(KeyError, match="none"):
        places["none"]


def test_a_sound_scan_makes_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: FilesOfTensors) -> dict[str, str]:
        raise AssertionError("a table of all tensors was made")

    monkeypatch.setattr(files_of_tensors.FilesOfTensors, "table", property(make))
    assert ckptcheck.scan(CHECKPOINTS / "tiny-llama-sharded", headers_only=True).verdict == "clean"
