"""Labels of dtypes, copies and scales on a real model: what is wrong is named, and what merely looks odd is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import CHECKPOINTS
from safetensors.numpy import save_file
from test_value_damage import findings, raw_values, rewritten

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values.measure import attach


def as_numbers(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("levels", ["one a row and column", "two", "three in groups of 16"])
def test_rounded_weights_in_f16_are_sound(smollm2: Path, tmp_path: Path, levels: str) -> None:
    """Weights that a method rounded to one, two or three bits and stored in F16 are as narrow as BF16 called F16."""
    ckpt = open_checkpoint(str(smollm2))
    values = {}
    for name, tensor in ckpt.tensors.items():
        value = as_numbers(raw_values(ckpt, name))
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
    folder = rewritten(smollm2, tmp_path / "rounded", values, relabel=("BF16", "F16"))
    assert [finding for finding in findings(folder) if finding.code == "VAL006"] == []


def test_a_shard_of_swapped_bytes_is_one_finding(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    (shard, *_) = sorted(ckpt.shards)[1:]
    swapped = {
        name: np.frombuffer(raw_values(ckpt, name), "<u2").byteswap().tobytes() for name in ckpt.shards[shard].tensors
    }
    found = [
        finding for finding in findings(rewritten(smollm2, tmp_path / "swapped", swapped)) if finding.code == "VAL006"
    ]
    assert [finding.file for finding in found] == [shard]
    assert " tensors hold an absurdly large value: " in found[0].message
    assert found[0].message.endswith(": a wrong order of bytes")


def test_integers_for_numbers_in_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    (rule,) = (rule for rule in pack.load() if rule.code == "CFG021")
    assert run(open_checkpoint(str(smollm2)), [rule]).findings == ()
    folder = rewritten(smollm2, tmp_path / "integers", {}, relabel=("BF16", "I16"))
    found = run(open_checkpoint(str(folder)), [rule]).findings
    assert {finding.file for finding in found} == set(open_checkpoint(str(smollm2)).shards)
    assert all(" weights are labelled I16, and nothing is quantized here: " in finding.message for finding in found)


def told(folder: Path, code: str) -> list[str]:
    return [finding.message for finding in findings(folder) if finding.code == code]


def test_a_copy_of_an_expert_that_is_not_the_first(tmp_path: Path) -> None:
    """E4M3 numbers of which all experts use the largest, as quantized ones do."""
    random = np.random.default_rng(0)
    data, header = b"", {}
    for expert in range(4):
        value = random.integers(0, 256, (16, 16), dtype=np.uint8)
        value[value & 0x7F == 0x7F] = 0x7E
        value[0, 3] = 0x7E
        name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        raw = data[-256:] if expert == 3 else value.tobytes()
        header[name] = {"dtype": "F8_E4M3", "shape": [16, 16], "data_offsets": [len(data), len(data) + 256]}
        data += raw
    text = json.dumps(header).encode().ljust(1024)
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert told(tmp_path, "VAL009") == ["in layer 1 expert 3 is expert 2 again, byte for byte"]


def adapter(folder: Path, zero: set[str]) -> Path:
    random = np.random.default_rng(0)
    tensors = {}
    for layer in range(6):
        for module in ("self_attn.q_proj", "self_attn.v_proj", "mlp.experts.3.up_proj"):
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.normal(0, 0.1, (4, 16)).astype("f4")
            value = random.normal(0, 0.1, (16, 4)).astype("f4")
            tensors[f"{name}.lora_B.weight"] = value * (f"{layer}.{module}" not in zero)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    return folder


def test_the_adapter_of_one_layer_is_zero(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.3.self_attn.q_proj.lora_B.weight"
    assert told(adapter(tmp_path / "lora", {"3.self_attn.q_proj"}), "VAL004") == [
        f"1 adapter is all zero, and the same of most other layers are not: {name}"
    ]


def test_adapters_that_may_be_zero(tmp_path: Path) -> None:
    """None trained, one layer left out, the queries trained in half of the layers, an expert that no token chose."""
    queries, values = ([f"{layer}.self_attn.{name}_proj" for layer in range(6)] for name in "qv")
    for number, zero in enumerate(
        (
            {*queries, *values},
            {queries[2], values[2], "2.mlp.experts.3.up_proj"},
            {*queries[:3]},
            {"4.mlp.experts.3.up_proj"},
        )
    ):
        assert told(adapter(tmp_path / str(number), zero), "VAL004") == []


def test_half_of_the_scales_of_a_real_matrix(smollm2_w4a16: Path, tmp_path: Path) -> None:
    """Of a matrix whose scales are small enough to be read, and of one where the runs of zeros tell it."""
    (rule,) = (rule for rule in pack.load() if rule.code == "QNT010")
    ckpt = open_checkpoint(str(smollm2_w4a16))
    assert run(attach(ckpt), [rule]).findings == ()
    for module in ("self_attn.k_proj", "mlp.down_proj"):
        name = f"model.layers.12.{module}.weight_scale"
        raw = raw_values(ckpt, name)
        folder = rewritten(smollm2_w4a16, tmp_path / module, {name: raw[: len(raw) // 2].ljust(len(raw), b"\0")})
        (found,) = run(attach(open_checkpoint(str(folder))), [rule]).findings
        assert found.key == name
        assert found.message.startswith("1 scale is zero in part, where the weight is not: ")


def test_scales_stored_as_reciprocals(tmp_path: Path) -> None:
    (rule,) = (rule for rule in pack.load() if rule.code == "QNT011")
    source = CHECKPOINTS / "tiny-fp8"
    ckpt = open_checkpoint(str(source))
    values = {
        name: (1 / np.frombuffer(raw_values(ckpt, name), "<f4")).astype("<f4").tobytes()
        for name in ckpt.tensors
        if name.endswith("weight_scale_inv")
    }
    (found,) = run(attach(open_checkpoint(str(rewritten(source, tmp_path / "fp8", values)))), [rule]).findings
    assert found.message == (
        "half of the 39 FP8 weights hold 1.58e+06 or more once multiplied by their weight_scale_inv: "
        "the scales are reciprocals"
    )


@pytest.mark.parametrize("rounding", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shape", [(40,), (300, 64), (6, 300, 64)])
def test_a_master_copy_is_what_its_weight_was_rounded_from(rounding: str, shape: tuple[int, ...]) -> None:
    """Also where the weight is BF16 or F16, tiny numbers included; one that was replaced in a third of its rows is another."""
    from ckptcheck.values.master_copies import is_another

    values = np.random.default_rng(0).normal(0, 0.02, shape).astype("f4") * np.float32(1e-3 if rounding == "F16" else 1)
    match rounding:
        case "BF16":
            rounded = ((values.view("u4") + np.uint32(0x8000)) >> np.uint32(16)).astype("u2")
        case "F16":
            rounded = values.astype(np.float16)
        case _:
            rounded = values
    stored = {"F32": values, rounding + " weight": rounded}
    run: Any = SimpleNamespace(read=lambda tensor, place: stored[tensor.key][place])
    master: Any = SimpleNamespace(key="F32", dtype="F32", shape=shape)
    weight: Any = SimpleNamespace(key=rounding + " weight", dtype=rounding, shape=shape)
    assert not is_another(run, master, weight)
    stored["F32"] = values.copy()
    stored["F32"][..., -shape[-1] // 3 :] *= -1
    assert is_another(run, master, weight)
