"""Quantization methods that no rule of quantizations knows: what they store counts as the weights of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.factories.released_structures import Entry, Structure, write_checkpoint

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
LINEAR = [*(f"self_attn.{part}_proj" for part in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down"))]
METHODS: dict[str, dict[str, Entry]] = {
    "aqlm": {"codes": ("I16", (64, 8, 1)), "codebooks": ("F16", (1, 256, 1, 8)), "scales": ("F16", (64, 1, 1, 1))},
    "hqq": {"W_q": ("U8", (32, 64)), "scale": ("BF16", (64, 1)), "zero": ("BF16", (64, 1)), "axis": ("I64", ())},
    "exl2": {"q_weight": ("I32", (8, 64)), "q_scale": ("I32", (2, 8)), "q_groups": ("I16", (4,)), "q_invperm": ("I32", (64,))},
    "exl3": {"trellis": ("I16", (4, 4, 64)), "suh": ("F16", (64,)), "svh": ("F16", (64,))},
    "quip": {"Qidxs": ("I64", (4, 1, 8, 4)), "SU": ("F16", (64,)), "SV": ("F16", (64,)), "Wscale": ("F32", ())},
    "marlin": {"B": ("I32", (4, 128)), "s": ("F16", (1, 64))},
    "spqr": {"dense_weights": ("I64", (256,)), "row_offsets": ("I32", (65,)), "col_vals": ("I32", (10,))},
    "quanto": {"weight._data": ("I8", (64, 64)), "weight._scale": ("F16", (64, 1)), "input_scale": ("F16", ())},
    "quanto of 4 bits": {
        "weight._data._data": ("U8", (32, 64)), "weight._scale": ("BF16", (64, 1)), "weight._shift": ("BF16", (64, 1)),
        "input_scale": ("BF16", ()), "output_scale": ("BF16", ()),
    },
    "torchao": {"_weight_qdata": ("I8", (64, 64)), "_weight_scale": ("BF16", (64, 1))},
    "vptq": {"indices": ("I16", (1, 64, 8)), "centroids.weight": ("BF16", (1, 256)), "res_centroids.weight": ("BF16", (1, 64))},
}  # fmt: skip


def build(method: str) -> dict[str, Entry]:
    entries: dict[str, Entry] = {
        f"model.layers.{layer}.{module}.{part}": entry
        for layer in range(3)
        for module in LINEAR
        for part, entry in METHODS[method].items()
    }
    norms = [f"model.layers.{layer}.{norm}_layernorm" for layer in range(3) for norm in ("input", "post_attention")]
    entries |= {f"{norm}.weight": ("F16", (64,)) for norm in (*norms, "model.norm")}
    return entries | dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ("F16", (512, 64)))


def find_told(entries: dict[str, Entry], method: str, folder: Path) -> list[str]:
    config = {**CONFIG, "quantization_config": {"quant_method": method}}
    write_checkpoint(Structure("made/up", "", config, []), folder, entries)
    found = ckptcheck.scan(folder, headers_only=True, select=["CFG"]).findings
    return [f"{one.code} {one.message}" for one in found if one.severity in ("error", "warning")]


@pytest.mark.parametrize("method", METHODS)
def test_weights_of_rare_methods_are_not_missing(method: str, tmp_path: Path) -> None:
    entries = build(method)
    assert find_told(entries, method, tmp_path / "whole") == []
    torn = {name: entry for name, entry in entries.items() if "layers.1.mlp.up_proj" not in name}
    assert find_told(torn, method, tmp_path / "torn")


def test_the_head_may_be_packed_too(tmp_path: Path) -> None:
    """EXL2 packs the head, with more bits."""
    entries = build("exl2")
    del entries["lm_head.weight"]
    entries |= {f"lm_head.{part}": entry for part, entry in METHODS["exl2"].items()}
    assert find_told(entries, "exl2", tmp_path) == []
