"""Wrong dtype labels and byte orders in a real model, and right ones that look odd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from tests.factories.value_cases import copy_with_values, read_raw_values, run_value_rules

LAYER = "model.layers.12."


def as_f16(raw: bytes) -> bytes:
    wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float16).tobytes()


def as_numbers(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_dtype_that_is_wrong_is_seen_in_a_real_model(smollm2: Path, tmp_path: Path, whole: bool) -> None:
    """BF16 bytes called F16, in every header; and one tensor of F16 bytes called BF16."""
    name = LAYER + "mlp.gate_proj.weight"
    ckpt = open_checkpoint(str(smollm2))
    if whole:
        folder = copy_with_values(smollm2, tmp_path / "f16", {}, relabel=("BF16", "F16"))
        findings = run_value_rules(folder)
        # Norms that are read as F16 are about two.
        assert {finding.code for finding in findings} == {"VAL006", "VAL017"}
        findings = [finding for finding in findings if finding.code == "VAL006"]
        assert {finding.file for finding in findings} == set(ckpt.shards)
        assert all(
            "labelled F16, but their values look like weights only when read as BF16" in finding.message
            for finding in findings
        )
    else:
        folder = copy_with_values(smollm2, tmp_path / "bf16", {name: as_f16(read_raw_values(ckpt, name))})
        findings = run_value_rules(folder)
        assert {finding.code for finding in findings} == {"VAL006", "VAL024"}
        assert [(finding.code, finding.key, finding.message) for finding in findings if finding.code == "VAL006"] == [
            (
                "VAL006",
                name,
                f"1 matrix is labelled BF16, but its values look like weights only when read as F16: {name}",
            )
        ]


@pytest.mark.slow
def test_a_dtype_that_is_right_is_not_doubted(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {name: as_f16(read_raw_values(ckpt, name)) for name in ckpt.tensors}
    assert run_value_rules(copy_with_values(smollm2, tmp_path / "f16", values, relabel=("BF16", "F16"))) == []


@pytest.mark.parametrize("levels", ["one a row and column", "two", "three in groups of 16"])
def test_rounded_weights_in_f16_are_sound(smollm2: Path, tmp_path: Path, levels: str) -> None:
    """Weights that a method rounded to one, two or three bits and stored in F16 are as narrow as BF16 called F16."""
    ckpt = open_checkpoint(str(smollm2))
    values = {}
    for name, tensor in ckpt.tensors.items():
        value = as_numbers(read_raw_values(ckpt, name))
        if ".layers." in name and len(tensor.shape) == 2:
            rows = value.reshape(tensor.shape)
            groups = rows.reshape(-1, 16)
            size, mean = np.abs(groups).max(1, keepdims=True), np.abs(groups).mean(1, keepdims=True)
            match levels:
                case "one a row and column":  # as OneBit factors a matrix
                    spread = np.abs(rows).mean(0, keepdims=True) * np.abs(rows).mean(1, keepdims=True)
                    rows = np.where(rows < 0, -1, 1) * spread / np.abs(rows).mean()
                case "two":
                    rows = np.sign(groups) * np.where(np.abs(groups) > mean, 1.5, 0.5) * mean
                case _:
                    rows = np.round(groups / size * 3) * size / 3
            value = rows.reshape(-1)
        values[name] = value.astype(np.float16).tobytes()
    folder = copy_with_values(smollm2, tmp_path / "rounded", values, relabel=("BF16", "F16"))
    assert [finding for finding in run_value_rules(folder) if finding.code == "VAL006"] == []


def test_a_shard_of_swapped_bytes_is_one_finding(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    (shard, *_) = sorted(ckpt.shards)[1:]
    swapped = {
        name: np.frombuffer(read_raw_values(ckpt, name), "<u2").byteswap().tobytes()
        for name in ckpt.shards[shard].tensors
    }
    findings = [
        finding
        for finding in run_value_rules(copy_with_values(smollm2, tmp_path / "swapped", swapped))
        if finding.code == "VAL006"
    ]
    assert [finding.file for finding in findings] == [shard]
    assert " tensors hold an absurdly large value: " in findings[0].message
    assert findings[0].message.endswith(": flipped bits, or a wrong dtype or order of bytes")


def test_integers_for_numbers_in_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    (rule,) = (rule for rule in rule_loader.load_rules() if rule.code == "CFG021")
    assert run_rules(open_checkpoint(str(smollm2)), [rule]).findings == ()
    folder = copy_with_values(smollm2, tmp_path / "integers", {}, relabel=("BF16", "I16"))
    findings = run_rules(open_checkpoint(str(folder)), [rule]).findings
    assert len(findings) == 1
    assert " weights are labelled I16, but nothing declares a quantization: " in findings[0].message
    assert len(findings[0].names) > 200
