"""Causes before consequences: what one fault of names or shapes is said to be, and where a loader's own answer counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load import DryLoad
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import build_checkpoint

CODES = ("CFG003", "CFG004", "CFG012", "CFG016")
RULES = [rule for rule in rule_loader.load_rules() if rule.code in CODES]


@dataclass(frozen=True)
class Answer:
    """A loader that says what it is told to."""

    answer: DryLoad
    name: str = "transformers"

    def load(self, ckpt: Checkpoint) -> DryLoad:
        return self.answer


def scan(folder: Path, case: dict[str, Any], options: ScanOptions | None = None) -> Report:
    path = build_checkpoint({"title": "", "base": "tiny-llama", **case}, folder / "ckpt")
    ckpt = open_checkpoint(str(path), options=options or ScanOptions())
    return run_rules(ckpt, RULES)


LOST = {"json": {"config.json": {"num_hidden_layers": 4, "intermediate_size": 24}}}


def test_the_tables_say_nothing_where_transformers_was_asked(tmp_path: Path) -> None:
    assert {finding.code for finding in scan(tmp_path, LOST).findings} == {"CFG003", "CFG012"}
    asked = ScanOptions(dry_loaders=(Answer(DryLoad("transformers 5.24.0", "LlamaForCausalLM")),))
    report = scan(tmp_path, LOST, asked)
    assert report.findings == ()
    assert {*report.skipped} == {
        (code, "transformers 5.24.0 itself was asked to load it: DRY001 has its answer") for code in CODES
    }


def test_what_only_engines_build_is_said_beside_its_answer(tmp_path: Path) -> None:
    asked = ScanOptions(dry_loaders=(Answer(DryLoad("transformers 5.24.0", "LlamaForCausalLM")),))
    case = {"json": {"config.json": {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}}}
    (found,) = scan(tmp_path, case, asked).findings
    assert (found.severity, found.key) == ("warning", "num_nextn_predict_layers")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(DryLoad("transformers 5.24.0", unasked="it brings its own code")),
        Answer(DryLoad("transformers 5.24.0", refused="the config is refused")),
        Answer(DryLoad("vLLM 0.32.0", "LlamaForCausalLM"), "vllm"),
    ],
)
def test_they_speak_where_it_got_no_further_or_another_was_asked(answer: Answer, tmp_path: Path) -> None:
    report = scan(tmp_path, LOST, ScanOptions(dry_loaders=(answer,)))
    assert {finding.code for finding in report.findings} == {"CFG003", "CFG012"}


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ({"json": {"config.json": {"num_hidden_layers": 5}}}, "CFG003"),
        ({"json": {"config.json": {"hidden_size": 16, "head_dim": 2}}}, "CFG012"),
        ({"json": {"config.json": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}}}, "CFG016"),
        ({"json": {"config.json": {"attention_bias": True}}}, "CFG003"),
    ],
)
def test_one_cause_is_one_finding(case: dict[str, Any], code: str, tmp_path: Path) -> None:
    assert [finding.code for finding in scan(tmp_path, case).findings] == [code]


def test_two_settings_of_another_model_are_two_findings(tmp_path: Path) -> None:
    case = {"json": {"config.json": {"intermediate_size": 24, "num_key_value_heads": 4}}}
    found = scan(tmp_path, case).findings
    assert [finding.code for finding in found] == ["CFG012", "CFG012"]
    assert ["intermediate_size is 24" in finding.message for finding in found].count(True) == 1


def test_a_misspelt_module_is_said_with_what_it_misses(tmp_path: Path) -> None:
    names = {
        f"model.layers.{layer}.mlp.up_projection.weight": {"dtype": "F32", "shape": [12, 8]} for layer in range(3)
    } | {f"model.layers.{layer}.mlp.up_proj.weight": False for layer in range(3)}
    (found,) = scan(tmp_path, {"tensors": {"model.safetensors": names}}).findings
    assert found.code == "CFG003"
    assert "mlp.up_projection.weight is stored, for which it has no place" in found.message
