"""Builds small quantized checkpoints in the formats of their tools, and edits what their files say of the quantization."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzzing.checkpoint_edits import RETYPES, change_value, edit_header_of, iter_parts
from tests.fuzzing.tensor_edits import edit_tensors

BITSANDBYTES: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
ROLES = (
    "weight", "weight_scale", "weight_scale_inv", "weight_packed", "weight_shape", "weight_global_scale", "weight_zero_point",
    "input_scale", "input_global_scale", "weight_scale_2", "qweight", "qzeros", "scales", "g_idx", "weight_g_idx", "SCB",
    "weight.absmax", "scale", "bias",
)  # fmt: skip
ADDED: dict[str, Any] = {
    "quant_method": "fp8",
    "format": "pack-quantized",
    "quantization_status": "initialized",
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
    "sparsity_config": {"format": "sparse-24-bitmask", "targets": ["Linear"]},
    "ignore": ["model.layers.1.mlp.down_proj"],
    "modules_to_not_convert": ["model.layers.1.mlp.down_proj"],
    "llm_int8_skip_modules": ["down_proj"],
    "dynamic": {"-:.*down_proj": {}},
    "desc_act": True,
    "actorder": "group",
    "sym": False,
    "symmetric": False,
    "zero_point": False,
    "checkpoint_format": "gptq_v2",
    "bits": 8,
    "num_bits": 8,
    "group_size": 64,
    "strategy": "channel",
    "type": "float",
    "block_structure": [64, 64],
    "weight_block_size": [64, 64],
    "activation_scheme": "static",
    "scale_fmt": "ue8m0",
    "targets": ["Embedding"],
    "output_activations": {"num_bits": 8, "type": "int"},
    "version": "gemv",
    "load_in_4bit": True,
    "load_in_8bit": True,
    "transform_config": {"config_groups": {}},
}
"""Keys that a quantization config may get from another one."""
WORDS = (
    "", "x", "int", "float", "group", "channel", "tensor", "block", "token", "tensor_group", "pack-quantized", "int-quantized",
    "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "dense", "compressed", "frozen", "fp8", "gptq", "gptq_v2",
    "awq", "bitsandbytes", "compressed-tensors", "mxfp4", "modelopt", "gemm", "gemv", "static", "dynamic", "e4m3", "e5m2",
    "nf4", "fp4", "weight", "group", "Linear", "re:.*q_proj", "re:.*", "lm_head", "model.layers.0.self_attn.o_proj", "local",
)  # fmt: skip


def build_checkpoints(folder: Path) -> list[Path]:
    """Write a dense and a mixture-of-experts model in each format; those of bitsandbytes where it is installed."""
    import quantized

    written = quantized.write_all(folder)
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        return written
    return written + [save_with_bitsandbytes(folder, name) for name in BITSANDBYTES]


def save_with_bitsandbytes(folder: Path, name: str) -> Path:
    """Quantize the dense model with bitsandbytes, and let transformers save it."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "bf16" / "dense",
        quantization_config=transformers.BitsAndBytesConfig(**BITSANDBYTES[name]),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder / f"dense-bitsandbytes-{name}")
    return folder / f"dense-bitsandbytes-{name}"


def edit_quantized(folder: Path, dice: random.Random) -> str:
    """Edit the quantization config, the tensors or a header of a quantized checkpoint, and say what was edited."""
    kind = dice.choice(["config"] * 5 + ["tensors"] * 5 + ["header"])
    shard = folder / "model.safetensors"
    if kind == "config":
        path = folder / "config.json"
        config = json.loads(path.read_text())
        said = edit_quantization(config, dice)
        path.write_text(json.dumps(config))
    elif kind == "tensors":
        said = edit_tensors(shard, dice, ROLES)
    else:
        said = edit_header_of(shard, dice)
    return f"{kind}: {said}"


def edit_quantization(config: dict[str, Any], dice: random.Random) -> str:
    """Remove, empty, add, change or retype a key of the quantization config, at its top or in what it nests."""
    quantization = config["quantization_config"]
    parts = [("", quantization), *((path, part) for path, part in iter_parts(quantization) if part)]
    path, place = dice.choice(parts)
    # the offload is judged by the machine, and a machine without a GPU offloads all
    key = dice.choice([key for key in sorted(place) if key != "llm_int8_enable_fp32_cpu_offload"])
    way = dice.choice(["remove", "null", "add", *["change"] * 5, "retype", "drop"])
    if way == "drop":
        del config["quantization_config"]
        return "drop the whole"
    if way == "remove":
        del place[key]
    elif way == "null":
        place[key] = None
    elif way == "add":
        key = dice.choice(sorted(ADDED))
        place[key] = ADDED[key]
    elif way == "retype":
        place[key] = dice.choice(RETYPES)(place[key])
    elif isinstance(place[key], str):
        place[key] = dice.choice([word for word in WORDS if word != place[key]])
    elif isinstance(place[key], int) and not isinstance(place[key], bool):
        place[key] = dice.choice([0, 1, 2, 3, 4, 8, 16, 32, 64, 128, -1, place[key] * 2, place[key] // 2])
    elif isinstance(place[key], list) and place[key] and isinstance(place[key][0], str) and dice.random() < 0.5:
        place[key] = [*place[key], dice.choice(WORDS)]
    else:
        place[key] = change_value(place[key], dice)
    return f"{way} {path}{key}" + ("" if way in ("remove", "null") else f" {json.dumps(place.get(key))[:80]}")
