"""Damage to the values of a real model: the right rule names it, and no other rule does."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, read_raw_values, run_all_rules, run_value_rules

pytestmark = pytest.mark.slow

LAYER = "model.layers.12."


@pytest.mark.parametrize("part", ["router", "inf", "constant", "layer", "rank"])
def test_further_damage_is_named(smollm2: Path, tmp_path: Path, part: str) -> None:
    ckpt = open_checkpoint(str(smollm2))
    name = LAYER + "mlp.up_proj.weight"
    raw = bytearray(read_raw_values(ckpt, name))
    match part:
        case "router":  # the embedding stands for it: this model is dense
            name, values = "model.embed_tokens.weight", {"model.embed_tokens.weight": bytes(2 * 49152 * 576)}
        case "inf":
            raw[1000:1002] = b"\x80\x7f"
            values = {name: bytes(raw)}
        case "constant":
            values = {name: b"\x80\x3f" * (len(raw) // 2)}
        case "layer":
            name = "model.layers.13"
            layer = [tensor for tensor in ckpt.tensors if tensor.startswith(LAYER)]
            values = {tensor.replace(LAYER, name + "."): read_raw_values(ckpt, tensor) for tensor in layer}
        case "rank":
            rows = np.frombuffer(bytes(raw), "<u2").reshape(1536, 576)
            values = {name: np.concatenate([rows[:, :288], rows[:, :288]], axis=1).tobytes()}
    code = {"router": "VAL003", "inf": "VAL001", "constant": "VAL007", "layer": "VAL008", "rank": "VAL010"}[part]
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / part, values))
    assert [(finding.code, finding.key) for finding in findings] == [(code, name)]


def test_any_single_flipped_top_exponent_bit_is_seen(smollm2: Path, tmp_path: Path) -> None:
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "flipped")
    ckpt = open_checkpoint(str(folder))
    name = "model.layers.12.mlp.gate_proj.weight"
    shard = ckpt.shards[ckpt.tensor_to_file[name]]
    raw = bytearray((folder / shard.name).read_bytes())
    at = shard.data_start + shard.tensors[name].data_offsets[0] + 2 * 12345 + 1
    assert not raw[at] & 0x40, "the bit is clear in a weight below 2"
    raw[at] |= 0x40
    damage.replace(folder / shard.name, bytes(raw))
    findings = run_all_rules(folder).findings
    assert [(finding.code, finding.key) for finding in findings] == [("VAL006", name)]


@pytest.mark.parametrize("fill", ["nan", "block", "zero", "half"])
def test_damaged_values_of_a_real_model_are_named(smollm2: Path, tmp_path: Path, fill: str) -> None:
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / fill)
    ckpt = open_checkpoint(str(folder))
    name = "model.layers.21.self_attn.o_proj.weight"
    shard = ckpt.shards[ckpt.tensor_to_file[name]]
    raw = bytearray((folder / shard.name).read_bytes())
    begin, end = (shard.data_start + offset for offset in shard.tensors[name].data_offsets)
    match fill:
        case "nan":
            raw[begin + 200 : begin + 202] = struct.pack("<H", 0x7FC1)
        case "block":
            raw[begin + 70_000 : begin + 74_096] = bytes(4096)
        case "zero":
            raw[begin:end] = bytes(end - begin)
        case "half":
            raw[(begin + end) // 2 : end] = raw[begin : (begin + end) // 2]
    damage.replace(folder / shard.name, bytes(raw))
    code = {"nan": "VAL001", "block": "VAL005", "zero": "VAL004", "half": "VAL010"}[fill]
    assert [(finding.code, finding.key) for finding in run_all_rules(folder).findings] == [(code, name)]


def test_a_real_model_is_sound(smollm2: Path) -> None:
    report = run_all_rules(smollm2)
    assert report.findings == ()
    assert report.skipped == ()
    assert sum(code.startswith("VAL") for code in report.passed) >= 11
