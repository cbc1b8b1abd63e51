"""Copies in place of a matrix or a layer of its own, on the weights of a real model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptcheck.checkpoint.megatron.tensor import Chunk
from ckptcheck.checkpoint.megatron.tensor_reader import ChunkLocation
from ckptcheck.checkpoint.open import open_checkpoint
from tests.factories.value_cases import copy_with_values, find_messages, read_raw_values, run_value_rules
from tests.test_rules import RULES


@pytest.mark.parametrize(
    ("name", "sizes", "corners", "seen"),
    [
        ("decoder.layers.0.mlp.linear_fc2.weight", (8, 4), [(0, 0), (0, 4)], True),
        ("decoder.layers.0.mixer.A_log", (8, 4), [(0, 0), (8, 0)], False),  # each row counts from 1: sound
        ("model.layers.0.mlp.experts.down_proj", (1, 8, 4), [(0, 0, 0), (1, 0, 0)], False),  # a copied block: VAL009's
        ("model.layers.0.mlp.experts.down_proj", (1, 8, 4), [(0, 0, 0), (0, 0, 4)], True),
    ],
)
def test_which_chunks_may_not_be_alike(
    name: str, sizes: tuple[int, ...], corners: list[tuple[int, ...]], seen: bool
) -> None:
    """What is an error in an exported checkpoint is one in the run that it comes from."""
    raw = np.random.default_rng(0).normal(size=sizes).astype("<f4").tobytes()
    placed = [
        (Chunk(corner, sizes, None), ChunkLocation(f"{number}.distcp", 0, len(raw), "F32", sizes, (), True))
        for number, corner in enumerate(corners)
    ]
    source = SimpleNamespace(read=lambda _, begin, length: raw[begin : begin + length])
    seen_run: Any = SimpleNamespace(
        form="torch_dist", weights={name: None}, inspection=SimpleNamespace(located={name: placed}), source=source
    )
    rules = {rule.code: rule for rule in RULES}
    assert len(list(rules["MEG028"].check(seen_run))) == seen
    assert rules["MEG028"].severity == rules["VAL010"].severity == "error"


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        (
            {"12.self_attn.o_proj": "11.self_attn.o_proj"},
            "self_attn.o_proj.weight of layer 12 repeats that of layer 11",
        ),
        (
            {"7.self_attn.v_proj": "7.self_attn.k_proj"},
            "in layer 7 self_attn.v_proj.weight repeats self_attn.k_proj.weight",
        ),
        (
            {f"{layer}.mlp.up_proj": f"{layer}.mlp.gate_proj" for layer in range(30)},
            "in layers 0-29 mlp.up_proj.weight repeats mlp.gate_proj.weight",
        ),
        (
            {f"20.mlp.{part}_proj": f"19.mlp.{part}_proj" for part in ("gate", "up", "down")},
            "mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight of layer 20 repeat those of layer 19",
        ),
        (
            {f"{layer + 15}.self_attn.q_proj": f"{layer}.self_attn.q_proj" for layer in range(15)},
            "self_attn.q_proj.weight of layers 15-29 repeats that of layers 0-14",
        ),
    ],
    ids=["another layer's", "keys for values", "gate for up", "a feed-forward block", "a stage's queries"],
)
def test_a_matrix_that_is_another_is_named(smollm2: Path, tmp_path: Path, copies: dict[str, str], message: str) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {
        f"model.layers.{copy}.weight": read_raw_values(ckpt, f"model.layers.{original}.weight")
        for copy, original in copies.items()
    }
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "copied", values))
    assert [(finding.code, finding.severity, finding.message) for finding in findings] == [
        ("VAL014", "warning", f"{message}, byte for byte")
    ]


def test_a_pipeline_offset_that_was_forgotten_is_one_sentence(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {}
    for layer in range(15, 30):
        first, own = f"model.layers.{layer - 15}.", f"model.layers.{layer}."
        values |= {
            own + name.removeprefix(first): read_raw_values(ckpt, name)
            for name in ckpt.tensors
            if name.startswith(first)
        }
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "stages", values))
    assert [(finding.code, finding.message) for finding in findings] == [
        ("VAL008", "model.layers: layers 15-29 repeat layers 0-14, byte for byte")
    ]


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
    assert find_messages(tmp_path, "VAL009") == ["in layer 1 expert 3 repeats expert 2, byte for byte"]
