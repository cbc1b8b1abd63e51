"""Parts that machines without a common file system write to an object store."""

from __future__ import annotations

from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError, EvidenceError, OutputError
from ckptcheck.values import value_pass
from tests.doubles.object_server import Kind, ObjectServer
from tests.paths import FIXTURES

LLAMA = FIXTURES / "checkpoints" / "tiny-llama"
TARGET, PARTS = "s3://models/runs/step_1", "s3://models/parts/"
NAME = "parts/part-1-of-3.ckptcheck-part"


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the checkpoint, which is small, into many units."""
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)


def write(index: int, folder: str = PARTS) -> object:
    return ckptcheck.write_part("scan", LLAMA, part=f"{index}/3", folder=folder, select=["VAL"])


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_the_report_of_one_machine(store: ObjectServer, kind: Kind) -> None:
    folder, alone = f"{kind}://models/parts", ckptcheck.scan(LLAMA, select=["VAL"])
    for index in (2, 0, 1):
        assert write(index, folder) == f"{folder}/part-{index}-of-3.ckptcheck-part"
    joined = ckptcheck.join(folder)
    assert isinstance(joined, ckptcheck.Reports)
    assert joined[0].to_dict() == alone.to_dict()
    by_runner = ckptcheck.scan(LLAMA, select=["VAL"], runner=ckptcheck.Parts(folder))
    assert by_runner.to_dict() == alone.to_dict()


def test_the_command_line(store: ObjectServer, tmp_path: Any) -> None:
    from ckptcheck.cli.app import build_app

    app = build_app()

    def run(*words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(app(words, standalone_mode=False))
        assert not ended.value.code

    for verb, *words in (["scan", TARGET, "--values"], ["diff", str(LLAMA), TARGET], ["manifest", TARGET]):
        for index in range(2):
            run(verb, *words, "--part", f"{index}/2", "-o", f"s3://models/{verb}")
        run("join", f"s3://models/{verb}", "-o", str(tmp_path / verb))
    assert (tmp_path / "manifest").is_file()
    assert len([key for key in store.buckets["models"] if key.endswith("-of-2.ckptcheck-part")]) == 6
    for words in (["scan", TARGET], ["diff", TARGET, TARGET], ["verify", TARGET, str(tmp_path / "manifest")]):
        with pytest.raises(CkptcheckError, match="a report can be written to a file of this machine only"):
            app([*words, "-o", "s3://models/report"], standalone_mode=False)


def test_a_missing_part_and_none(store: ObjectServer) -> None:
    with pytest.raises(CkptcheckError, match="s3://models/parts/ holds no part"):
        ckptcheck.join(PARTS)
    write(0)
    with pytest.raises(EvidenceError) as caught:
        ckptcheck.join(PARTS)
    command = f"ckptcheck scan {LLAMA} --select VAL --part 1/3 -o {PARTS}"
    assert caught.value.message == f"parts 1/3, 2/3 are missing in {PARTS}"
    assert caught.value.hint == f"run them: {command}; {command.replace('1/3', '2/3')}"
    store.buckets["models"][NAME] = b"\x00"
    with pytest.raises(EvidenceError, match=f"s3://models/{NAME} is no part of ckptcheck"):
        ckptcheck.join(PARTS)
    write(1)
    write(2)
    assert ckptcheck.join(PARTS).verdict == "clean", "what is no part was replaced"


def test_a_runner_reads_the_values_in_a_store(store: ObjectServer) -> None:
    """Nobody has to write --values beside --on ray."""
    for index in range(2):
        ckptcheck.write_part("scan", TARGET, part=f"{index}/2", folder=PARTS)
    report = ckptcheck.scan(TARGET, runner=ckptcheck.Parts(PARTS))
    assert report.to_dict() == ckptcheck.scan(TARGET, values=True).to_dict()
    assert ckptcheck.scan(TARGET, headers_only=True, runner=ckptcheck.Parts(PARTS)).skipped


def test_a_store_that_takes_nothing(store: ObjectServer) -> None:
    store.fail("put ", 403)
    with pytest.raises(OutputError) as caught:
        write(1)
    assert caught.value.message == f"cannot write s3://models/{NAME}: s3://models does not let you write it (403)"
    with pytest.raises(CkptcheckError, match="hf://org/name is no folder for parts"):
        write(1, "hf://org/name")
