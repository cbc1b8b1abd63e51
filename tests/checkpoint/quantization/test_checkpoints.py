"""Whole checkpoints in every format: sound ones raise nothing, and each tensor that is lost or cut is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import quantized

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import edit_tensors, read_tensors

RULES = rule_loader.load_rules()
ON_QUANTIZATION = [rule for rule in RULES if rule.code.startswith("QNT")]
NAMES = ["gpt-oss", *(f"{model}-{recipe}" for model in ("dense", "moe") for recipe in quantized.RECIPES)]
OPTIONAL = {"g_idx"}
"""Tensors that a checkpoint may do without."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="pip install 'ckptcheck[fixtures]'")
    folder = tmp_path_factory.mktemp("quantized")
    assert [path.name for path in quantized.write_all(folder)] == NAMES
    return folder


def scan(folder: Path) -> Report:
    return run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)


@pytest.mark.slow
def test_every_sound_checkpoint_is_quiet(built: Path) -> None:
    told = {}
    for name in NAMES:
        report = scan(built / name)
        told[name] = [f"{finding.code} {finding.message}" for finding in report.findings]
        told[name] += [f"{code} {why}" for code, why in (*report.crashed, *report.skipped) if code.startswith("QNT")]
    assert {name: said for name, said in told.items() if said} == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_lost_or_cut_tensor_is_named(name: str, built: Path, tmp_path: Path) -> None:
    whole = read_tensors(built / name / "model.safetensors")
    found = open_checkpoint(str(built / name)).quantization
    assert found is not None
    stored = max((way for way in found.storages if way.is_quantized), key=lambda way: len(way.parts))
    module = found.storages[stored][0]
    for role, part in stored.parts.items():
        key = stored.name(module, role)
        longer = [*part.shape[:-1], part.shape[-1] + 1] if part.shape else [2]
        for damage, change in (("lost", False), ("cut", {"dtype": part.dtype, "shape": longer})):
            if damage == "cut" and (role == "weight_shape" or part.role == stored.weight.role):
                continue
            copy = tmp_path / f"{role}-{damage}"
            shutil.copytree(built / name, copy)
            edit_tensors(copy / "model.safetensors", {key: change})
            findings = run_rules(open_checkpoint(str(copy)), ON_QUANTIZATION).findings
            told = {(finding.code, finding.key) for finding in findings if finding.severity == "error"}
            if role == stored.weight.role:
                assert [code for code, _ in told if "QNT" <= code < "QNT017"] == ["QNT001"]
            elif damage == "lost":
                assert {code for code in told if code[0] < "QNT017"} == (
                    set() if role in OPTIONAL else {("QNT001", key)}
                )
            else:
                assert ("QNT001", key) in told
    assert set(read_tensors(built / name / "model.safetensors")) == set(whole)
