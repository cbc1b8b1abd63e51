"""Norms of a real model, lost or shifted as a whole or in part; and those that mean something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptcheck
from ckptcheck.checkpoint.megatron.inspection import MegatronWeights
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import build_checkpoint
from tests.factories.value_cases import VALUE_RULES, copy_with_values, find_keys, read_raw_values, run_value_rules

ONE = b"\x80\x3f"
LAYERS = [
    f"model.layers.{number}.{norm}.weight"
    for number in range(30)
    for norm in ("input_layernorm", "post_attention_layernorm")
]
UP = "model.layers.3.mlp.up_proj.weight"


def test_norms_that_were_lost_hide_nothing(smollm2: Path, tmp_path: Path) -> None:
    """A model whose layer norms are all 1 is not a fresh one where its matrices are trained."""
    values = dict.fromkeys(LAYERS, 576 * ONE)
    lost = [("VAL012", LAYERS[0])]
    assert find_keys(copy_with_values(smollm2, tmp_path / "lost", values)) == lost
    assert find_keys(copy_with_values(smollm2, tmp_path / "zero", values | {UP: bytes(2 * 576 * 1536)})) == [
        ("VAL004", UP),
        *lost,
    ]


def test_norms_multiplied_into_the_matrices(smollm2: Path, tmp_path: Path) -> None:
    """Methods that rotate a model (QuaRot, SpinQuant) leave every norm 1, the final one too: that is sound."""
    values = dict.fromkeys([*LAYERS, "model.norm.weight"], 576 * ONE)
    assert find_keys(copy_with_values(smollm2, tmp_path / "unquantized_name", values)) == []


@pytest.mark.parametrize("lost", [range(30), range(3, 4)])
def test_a_kind_of_matrix_may_start_at_zero_but_not_one_of_it(smollm2: Path, tmp_path: Path, lost: range) -> None:
    ckpt, random = open_checkpoint(str(smollm2)), np.random.default_rng(3)
    values = dict.fromkeys([*LAYERS, "model.norm.weight"], 576 * ONE)
    for name, tensor in ckpt.tensors.items():
        if len(tensor.shape) == 2:
            drawn = random.normal(0, 0.02, tensor.nbytes // 2).astype(np.float32)
            values[name] = (drawn.view(np.uint32) >> 16).astype("<u2").tobytes()
    values |= {f"model.layers.{number}.mlp.up_proj.weight": bytes(2 * 576 * 1536) for number in lost}
    folder = copy_with_values(smollm2, tmp_path / "fresh", values)
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), VALUE_RULES)
    assert [(finding.code, finding.key) for finding in report.findings] == ([("VAL004", UP)] if len(lost) == 1 else [])
    reason = "the checkpoint looks freshly initialised: its norms are constant"
    skipped = {"VAL012"} if len(lost) == 1 else {"VAL004", "VAL012"}
    assert {(code, why) for code, why in report.skipped} == {(code, reason) for code in skipped}


@pytest.mark.parametrize("kept", [576 - 450, 1])
def test_a_norm_that_lost_its_end(smollm2: Path, tmp_path: Path, kept: int) -> None:
    name = "model.norm.weight"
    raw = read_raw_values(open_checkpoint(str(smollm2)), name)[: 2 * kept] + bytes(2 * (576 - kept))
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "torn", {name: raw}))
    assert [(finding.code, finding.key) for finding in findings] == [("VAL013", name)]
    assert (
        findings[0].message
        == f"elements {kept}-575 of 576 are zero, and most other norms of this length have no such stretch"
    )


def test_a_norm_that_is_zero_is_said_once(smollm2: Path, tmp_path: Path) -> None:
    name = LAYERS[24]
    assert find_keys(copy_with_values(smollm2, tmp_path / "zero", {name: bytes(1152)})) == [("VAL013", name)]


@pytest.mark.parametrize("shift", [1152, 4096])
def test_a_shard_whose_data_are_shifted(smollm2: Path, tmp_path: Path, shift: int) -> None:
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "shifted")
    file = "model-00002-of-00003.safetensors"
    raw = (folder / file).read_bytes()
    start = open_checkpoint(str(smollm2)).shards[file].data_start
    damage.replace(folder / file, raw[:start] + raw[-shift:] + raw[start:-shift])
    assert "VAL015" in {code for code, _ in find_keys(folder)}


@pytest.mark.parametrize("shift", [1, 2, 5000])
def test_a_model_whose_data_are_all_shifted(smollm2: Path, tmp_path: Path, shift: int) -> None:
    """No norm is whole to compare with, so the distance to the numbers of the norms shows it; NaN and odd rows are consequences."""
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "shifted")
    for file in folder.glob("*.safetensors"):
        raw, start = file.read_bytes(), open_checkpoint(str(smollm2)).shards[file.name].data_start
        damage.replace(file, raw[:start] + raw[-shift:] + raw[start:-shift])
    report = ckptcheck.scan(folder)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [finding.code for finding in errors] == ["VAL015"]
    assert f"of 3 files lie {shift:,} {'byte' if shift == 1 else 'bytes'} behind" in errors[0].message


@pytest.mark.parametrize("argument", ["apply_layernorm_1p", "layernorm_zero_centered_gamma"])
def test_a_megatron_run_whose_norms_are_centred_at_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    table = {"base": "tp2-pp2", "elements": {"decoder.final_layernorm.weight": [{"chunk": 0, "zero": True}]}}
    folder = build_checkpoint(table, tmp_path / "run")
    (rule,) = (rule for rule in VALUE_RULES if rule.code == "VAL013")

    def number() -> int:
        return len(run_rules(open_target(str(folder), value_reader=ValuePass()), [rule]).findings)

    assert number() == 1
    before: Callable[[MegatronWeights], object] = MegatronWeights.arguments.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(MegatronWeights, "arguments", property(lambda self: {**before(self), argument: True}))  # type: ignore[dict-item]
    assert number() == 0


@pytest.mark.parametrize(("by", "which"), [(-1, "."), (-1, r"\.7\.input"), (1, ".")])
def test_norms_shifted_by_one(smollm2: Path, tmp_path: Path, by: int, which: str) -> None:
    """Gemma's norms hold the gain less one; this model's hold the gain."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for name in (name for name in [*LAYERS, "model.norm.weight"] if re.search(which, name)):
        gains = (np.frombuffer(read_raw_values(ckpt, name), "<u2").astype(np.uint32) << 16).view(np.float32)
        values[name] = ((gains + np.float32(by)).view(np.uint32) >> 16).astype("<u2").tobytes()
    codes = {code for code, _ in find_keys(copy_with_values(smollm2, tmp_path / "shifted", values))}
    assert codes == {"VAL017"}
