"""A short run of every door's fuzzer, and the inputs that once broke one; `make fuzz DOOR=…` is the long run of the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ckptcheck.checkpoint import chat_template, vocabulary
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.sandbox import SandboxResult
from tests.fuzz import CHECKPOINTS
from tests.fuzzing import guided, places
from tests.fuzzing.batches import run_batch
from tests.fuzzing.commands import JSON, Answer, find_wrong
from tests.fuzzing.documents import RULE_KINDS, require_no_crash
from tests.fuzzing.doors import DOORS
from tests.fuzzing.guided import list_targets
from tests.fuzzing.surroundings import set_traps

SHORT = {
    "hub": 15,
    "config": 40,
    "pickle": 60,
    "dcp": 30,
    "legacy": 60,
    "tokenizer": 80,
    "token-files": 60,
    "index": 80,
    "tensor-bytes": 80,
    "rank-files": 40,
    "deltas": 60,
    "signature": 40,
    "saves": 40,
    "kept-saves": 40,
    "parts": 80,
    "page": 40,
    "places": 40,
    "limits": 30,
    "folder": 4,
}
"""Seeds of doors whose inputs take longer than a thousandth of a second each."""
OTHERS = 200
FOUND = {
    # A part of a tensor beyond the tensor's shape, in a comparison; a signalling NaN among the samples of MEG037.
    "dcp": [7000969, 7001225, 9025412],
    "legacy": [9005280],  # two tensors of one side that claim one of the other as moved
    "batch": [502873],  # a global that is cut off behind the end of a line
    "page": [126, 549, 709, 500518, 5002879],  # marks and keys of curves that no value has; half a surrogate pair
    "kept-saves": [5008528, 7043145],  # a time that no calendar has; a step of hundreds of digits
    "hub": [20, 24, 34, 58],  # a Link to an address that is none
    "saves": [1817, 1954],  # a learning rate of hundreds of digits
    "prompts": [9, 17, 33, 56, 133, 178],  # JSON nested too deep
}
"""Seeds that a door did not survive, and does now."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.slow
def test_made_up_input_is_read_or_refused(door: str, tmp_path: Path) -> None:
    failed = run_batch(DOORS[door], range(1, 1 + SHORT.get(door, OTHERS)), tmp_path / "input")
    assert failed == []


@pytest.mark.parametrize("door", FOUND)
def test_what_broke_a_door_once_does_no_more(door: str, tmp_path: Path) -> None:
    for seed in FOUND[door]:
        assert run_batch(DOORS[door], range(seed, seed + 1), tmp_path / "input") == []


def test_an_input_that_breaks_a_door_is_named_by_its_seed(tmp_path: Path) -> None:
    """The fuzzer itself: an exception, memory without end and the end of the process are found, and the rest is read too."""

    def check(seed: int, folder: Path) -> None:
        if seed == 2:
            raise ValueError("no")
        if seed == 3:
            bytearray(1 << 30)
        if seed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "x").write_text("fine")
        assert seed != 7

    failed = run_batch(check, range(9), tmp_path / "input")
    found = [line.partition(" ")[2].partition(":") for line in failed]
    assert [(number, text.split()[0]) for number, _, text in found] == [
        ("2", "ValueError:"),
        ("3", "MemoryError:"),
        ("5", "signal"),
        ("7", "AssertionError:"),
    ]


def test_a_trap_leaves_a_mark_where_it_runs(tmp_path: Path) -> None:
    """The fuzzer itself: Python takes modules from the working directory unless it is told not to."""
    set_traps(tmp_path, mark := tmp_path / "mark", random.Random(1))
    subprocess.run([sys.executable, "-c", "import json"], cwd=tmp_path, check=False, capture_output=True)
    assert mark.read_text() == "json ran\n"


def test_a_word_about_a_file_is_asked_for() -> None:
    """The fuzzer itself: a command that takes a file away and calls the rest clean is found."""
    silent = Answer(0, json.dumps({"verdict": "clean", "findings": []}), "", "")
    assert places._is_silent(silent, "config.json")
    assert not places._is_silent(replace(silent, errors="config.json is a pipe"), "config.json")
    assert find_wrong(replace(silent, code=2, said=""), JSON) == "it ends with 2 and says nothing"
    assert find_wrong(replace(silent, said='{"verdict": "incomplete"}'), JSON)
    assert not find_wrong(silent, JSON)


def test_a_number_that_no_float_has_crashes_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TOK001 once multiplied the rows of a vocabulary of 400 digits by a float."""
    monkeypatch.setattr(chat_template, "run_sandboxed", lambda *_, **__: SandboxResult((), None))
    monkeypatch.setattr(vocabulary, "run_sandboxed", lambda *_, **__: SandboxResult((), None))
    path = Path(shutil.copytree(CHECKPOINTS / "tiny-chat", tmp_path / "ckpt"))
    config = json.loads((path / "config.json").read_bytes())
    for key in config:
        (path / "config.json").write_text(json.dumps({**config, key: 10**400}))
        require_no_crash(open_checkpoint(str(path), jobs=1), *RULE_KINDS)


def test_what_coverage_guides_reads_its_sound_inputs(tmp_path: Path) -> None:
    """atheris is not among the tools of the tests; what it would call is called with the inputs that it would begin with."""
    targets = list_targets(tmp_path)
    inputs = {door: list(target.sound()) for door, target in targets.items() if door not in ("signature", "statement")}
    assert all(inputs.values())
    for door, sound in inputs.items():
        for raw in [*sound[:2], b"", b"{", b"\x80\x04."]:
            targets[door].read(raw)


def test_without_atheris_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as end:
        guided.main(["--door", "manifest"])
    assert end.value.code == guided.MISSING


def test_an_input_of_the_guided_fuzzer_is_read_again_without_it(tmp_path: Path) -> None:
    path = tmp_path / "manifest-crash"
    path.write_bytes(b"[" * 5000)
    assert guided.main(["--door", "manifest", "--input", str(path)]) == 0
