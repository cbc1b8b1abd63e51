"""A trial that dies, hangs or is refused says so; nothing that it saw before then passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Section
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.source import open_source
from ckptcheck.live.refit.trace import RefitTrace
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.refit_cases import FakeTrainer, run_trial_case

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]


def refit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "refit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("method", ["manifest", "scramble", "refit", "score"])
@pytest.mark.parametrize("kind", ["died", "hung"])
def test_an_engine_that_is_lost_makes_the_verdict_incomplete(tmp_path: Path, method: str, kind: str) -> None:
    trace = run_trial_case({"faults": [{"kind": kind, "name": method}]}, tmp_path / "trial")
    report = run_rules(trace, RULES)
    assert report.verdict == "incomplete"
    assert report.passed == ()
    assert report.exit_code("error") == 2
    assert any(f"when asked to {method}" in why for why in trace.failed_phases.values())


def test_what_was_found_before_is_kept(tmp_path: Path) -> None:
    faults = [{"kind": "silent"}, {"kind": "died", "name": "refit", "since": 2}]
    report = run_rules(run_trial_case({"faults": faults}, tmp_path / "trial"), RULES)
    assert {"REF001", "REF009"} <= {finding.code for finding in report.findings}
    assert report.verdict == "incomplete"


def test_a_refusal_that_comes_late_ends_the_trial_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes before anything was seen is a refusal."""
    calls: list[int] = []

    def digests(self: FakeTrainer) -> dict[str, str]:
        calls.append(1)
        if len(calls) > late:
            raise CkptcheckError("no more digests", "ask less")
        return whole(self)

    whole, late = FakeTrainer.digests, 1
    monkeypatch.setattr(FakeTrainer, "digests", digests)
    trace = run_trial_case({"faults": [{"kind": "silent"}]}, tmp_path / "late")
    report = run_rules(trace, RULES)
    assert dict(trace.failed_phases) == {"sync after step 1": "no more digests; ask less"}
    assert "REF001" in {finding.code for finding in report.findings}
    assert (report.verdict, report.exit_code("error")) == ("incomplete", 2)
    monkeypatch.setattr(FakeTrainer, "save", lambda self, folder: digests(self))
    with pytest.raises(CkptcheckError, match="no more digests"):
        run_trial_case({}, tmp_path / "early")


def test_an_engine_that_cannot_be_made_to_decode_says_so(tmp_path: Path) -> None:
    def tables(trace: RefitTrace) -> tuple[Section, Section]:
        floor, logprobs = (section for section in trace.sections if "how far" in section.title)
        return floor, logprobs

    floor, logprobs = tables(run_trial_case({"speculates": True}, tmp_path / "drafted"))
    assert logprobs.lines == (
        "the trainer's tokens were not decoded: "
        "fake cannot be made to decode given tokens: it speculates, or gives processed logprobs",
    )
    assert [row[-2:] for row in logprobs.rows[:-1]] == [(None, None)] * 3
    assert "by decoding" in [row[1] for row in floor.rows], "of its own tokens"
    floor, logprobs = tables(run_trial_case({}, tmp_path / "plain"))
    assert not logprobs.lines
    assert [row[-2:] for row in logprobs.rows[:-1]] == [(0.0, 0.0)] * 3
    assert "by decoding" in [row[1] for row in floor.rows]


def test_a_sound_trial_is_clean_in_every_setting(tmp_path: Path) -> None:
    for number, settings in enumerate(
        ({}, {"steps": 0}, {"steps": 3}, {"perturb": 0.1}, {"weights": False}, {"logprobs": False})
    ):
        report = run_rules(run_trial_case({"settings": settings}, tmp_path / str(number)), RULES)
        assert (report.verdict, report.findings) == ("clean", ()), settings


def test_each_fault_is_seen_by_a_rule(tmp_path: Path) -> None:
    """Weights that are wrong without anything being said would be the one failure that counts."""
    wrong = (
        "dropped",
        "partial",
        "stale",
        "restored",
        "cast",
        "scaled",
        "unsent",
        "rank",
        "emptied",
        "moved",
        "renamed",
    )
    name = "model.layers.1.self_attn.o_proj.weight"
    for number, kind in enumerate(wrong):
        faults = [{"kind": kind, "name": name}]
        report = run_rules(run_trial_case({"faults": faults, "ranks": 2}, tmp_path / str(number)), RULES)
        assert report.findings, kind


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tiny-reward",), "is a critic or another scoring model, and no engine serves one"),
        (("tiny-llama", "--engine", "vlm"), "there is no engine vlm"),
        (("tiny-llama", "--no-check-logprobs", "--no-check-weight-update-equal"), "there is nothing to check"),
        (("tiny-w4a16",), "is quantized (compressed-tensors, pack-quantized), and a trainer holds plain weights"),
        (("tiny-w4a16",), "--quantize w4a16, w8a8 or fp8 to pack the weights on their way"),
        (("tiny-nvfp4",), "is quantized (modelopt, nvfp4), and a trainer holds plain weights"),
        (("tiny-llama", "--trainer", "transformers", "--tp", "2"), "--trainer transformers has one process"),
        (("tiny-llama", "--pause", "retract"), "vllm does not retract requests"),
        (
            ("tiny-llama", "--pause", "keep", "--transport", "load_weights"),
            "vllm takes weights while requests run by reload only",
        ),
        (("tiny-llama", "--pause", "keep", "--set", "sleep-level=2"), "--pause needs the KV cache"),
        (("tiny-llama", "--set", "sleep-level=2", "--steps", "0"), "--set sleep-level has no effect with --steps 0"),
        (("nowhere",), "nowhere"),
    ],
)
def test_trouble_is_a_sentence_and_exit_2(arguments: tuple[str, ...], sentence: str) -> None:
    result = refit(str(CHECKPOINTS / arguments[0]), *arguments[1:])
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_a_source_with_errors_of_its_own_is_not_tried(tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "broken")
    (folder / "model-00002-of-00003.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    result = refit(str(folder))
    assert result.returncode == 2
    assert "has 1 error, the first: " in result.stderr
    assert "--set despite-errors=on" in result.stderr
    spared: list[str] = []
    assert open_source(str(folder), tmp_path / "source", tolerated=spared).config is not None
    assert [line.partition(" ")[0] for line in spared] == ["IDX001"]
