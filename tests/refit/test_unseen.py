"""What a trial could not look at is said, and ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refitted import played

from ckptcheck import pack
from ckptcheck.engines.base import Engine
from ckptcheck.engines.fake import FakeEngine
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.trouble import HostDied
from ckptcheck.refit import reasons, unseen
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.report import Report
from ckptcheck.run import run

RULES = [rule for rule in pack.load() if rule.on == "refit"]
OUT = "model.layers.1.self_attn.o_proj.weight"
CAST = {"faults": [{"kind": "cast", "name": OUT}], "settings": {"steps": 0}}


def lines(report: Report | RefitTrace, title: str) -> list[Any]:
    return [
        each
        for section in report.sections
        if section.title.startswith(title)
        for each in (*section.rows, *section.lines)
    ]


def test_what_was_not_overwritten_is_reported_by_reason(tmp_path: Path) -> None:
    assert lines(played({}, tmp_path / "sound"), "not overwritten") == []
    report = run(played({"faults": [{"kind": "unmarked"}], "empty": [OUT]}, tmp_path / "trial"), RULES)
    assert lines(report, "not overwritten") == [
        ("it is empty", 1, OUT),
        (
            "nothing unusual can be written there",
            17,
            "lm_head.packed, lm_head.weight, model.embed_tokens.weight and 14 more",
        ),
    ]
    assert {"REF001", "REF002"} <= {code for code, _ in report.skipped}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HostDied("the reference died", ("MemoryError",)), "the reference died"),
        (CkptcheckError("no memory to start it"), "no memory to start it"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_diagnosis_that_fails_leaves_the_finding_and_goes_on(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: FakeEngine, names: Any, folder: Path) -> Path:
        raise error

    monkeypatch.setattr(FakeEngine, "fetch", failing)
    trace = played({**CAST, "settings": {}}, tmp_path / "trial")
    report = run(trace, RULES)
    assert not trace.broken
    assert [sync.step for sync in trace.syncs] == [0, 1, 1]
    assert "REF003" in {finding.code for finding in report.findings}
    assert lines(report, "causes that were not looked for")[0] == f"sync 1: {said}"


def test_a_buffer_that_cannot_be_read_was_not_meddled_with(tmp_path: Path) -> None:
    trace = played({"empty": ["model.rotary_emb.cos_sin_cache"]}, tmp_path / "trial")
    assert unseen.meddled(trace) == set()
    assert {"REF005"} <= set(run(trace, RULES).passed)


def test_only_so_many_bytes_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[list[str]] = []
    own = FakeEngine.fetch

    def seen(self: Engine, names: Any, folder: Path) -> Path:
        fetched.append([name for _, name in names])
        return own(self, names, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeEngine, "fetch", seen)
    assert played(CAST, tmp_path / "all").syncs[0].verdicts
    assert [len(names) for names in fetched] == [3, 1], "the layers beside it, to know one by the other"
    fetched.clear()
    monkeypatch.setattr(reasons, "WHOLE", 2 * 8 * 8 * 4)
    assert played(CAST, tmp_path / "two").syncs[0].verdicts
    assert fetched == [[OUT, "model.layers.0.self_attn.o_proj.weight"], [OUT]]
    monkeypatch.setattr(reasons, "LARGEST", 8)
    (sync,) = played(CAST, tmp_path / "none").syncs
    assert (sync.verdicts, sync.unexplained) == ((), "what differs is larger than 8 bytes")


def test_what_one_rank_wrote_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from ckptcheck.host.far.ckptcheck_far import inventory, plane

    held = [("a", "parameter", torch.ones(3), ""), ("b", "parameter", torch.zeros(2, 2), "")]
    path = str(tmp_path / "fetched.safetensors")

    def ask(verb: str, arguments: list[Any]) -> list[dict[str, Any]]:
        return [inventory.fetch(rank, held, *arguments) for rank in (0, 1)]

    def found() -> list[str]:
        assert [file.name for file in tmp_path.iterdir()] == ["fetched.safetensors"]
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sorted(header.keys() - {"__metadata__"})

    inventory.gather(ask, [["a"], ["b"]], path)
    assert found() == ["0/a", "1/b"]
    monkeypatch.setattr(plane, "get", None)
    inventory.gather(ask, [[], ["a", "b"]], path)
    assert found() == ["1/a", "1/b"]
