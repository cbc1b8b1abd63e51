"""Evidence is made once: what it is asked with goes to its constructor, and its answers depend on that alone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.consumers.mismatches import evaluate_checkpoint
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from tests.paths import FIXTURES, ROOT

QUANTIZED = FIXTURES / "checkpoints" / "tiny-fp8"


def test_evaluations_follow_the_consumers_they_are_asked_for() -> None:
    ckpt = open_checkpoint(str(QUANTIZED))
    assert evaluate_checkpoint(ckpt, ("vllm",)).keys() == {"vllm"}
    assert evaluate_checkpoint(ckpt, ("sglang",)).keys() == {"sglang"}
    assert evaluate_checkpoint(ckpt).keys() == {"vllm", "sglang"}
    assert evaluate_checkpoint(ckpt, ("vllm",)) is evaluate_checkpoint(ckpt, ("vllm",)), "each is computed once"


@pytest.mark.parametrize("consumers", [("vllm",), ("sglang",), ("transformers", "vllm")])
def test_the_options_are_given_when_the_evidence_is_made(consumers: tuple[str, ...]) -> None:
    ckpt = open_checkpoint(str(QUANTIZED), options=ScanOptions(consumers=consumers))
    assert evaluate_checkpoint(ckpt).keys() == set(consumers)


def test_an_answer_is_kept_by_the_evidence_it_is_about() -> None:
    calls = []

    @remembered
    def count_files(evidence: object, suffix: str = "") -> int:
        calls.append(suffix)
        return len(calls)

    first, second = open_checkpoint(str(QUANTIZED)), open_checkpoint(str(QUANTIZED))
    assert [count_files(first), count_files(first), count_files(second), count_files(first, "a")] == [1, 1, 2, 3]
    assert count_files(first, suffix="a") == 4, (
        "how an argument is written may cost a second computation, never a wrong one"
    )


def test_nothing_outside_evidence_keeps_answers_about_it() -> None:
    for path in (ROOT / "ckptcheck").rglob("*.py"):
        assert "WeakKeyDictionary" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("target", ["checkpoints/tiny-llama", "megatron/tp2-pp2"])
def test_without_a_value_reader_rules_about_values_are_skipped(target: str) -> None:
    rules = [rule for rule in load_rules() if rule.code in ("VAL001", "VAL004")]
    report = run_rules(open_target(str(FIXTURES / target)), rules)
    assert {reason for _, reason in report.skipped} == {"the values were not read"}
    assert not report.passed


def test_no_code_of_the_package_changes_evidence() -> None:
    """mypy refuses it too: these attributes are Final."""
    assignment = re.compile(r"\b(ckpt|checkpoint|megatron|run)\.(options|value_reader|jobs|source|progress)\s*=[^=]")
    for folder in ("ckptcheck", "rules"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not assignment.search(path.read_text(encoding="utf-8")), path


def test_a_generation_config_is_there_without_a_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(FIXTURES / "checkpoints" / "tiny-llama", folder)
    ckpt = open_checkpoint(str(folder))
    assert (ckpt.tokenizer, ckpt.generation_config) == (None, None)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}', encoding="utf-8")
    ckpt = open_checkpoint(str(folder))
    assert ckpt.tokenizer is None
    assert ckpt.generation_config is not None
    assert ckpt.generation_config.get("eos_token_id") == [2, 7]
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    ckpt = open_checkpoint(str(folder))
    assert ckpt.tokenizer is not None
    assert ckpt.tokenizer.generation_config is ckpt.generation_config
