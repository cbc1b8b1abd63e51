"""Builds a small base model and PEFT adapters for it, and edits an adapter's config or tensors."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.fuzzing.checkpoint_edits import RETYPES, change_value
from tests.fuzzing.tensor_edits import edit_tensors

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"], "r": 8, "lora_alpha": 16},
    "all": {"target_modules": LINEAR, "r": 4, "lora_alpha": 32, "use_rslora": True},
    "pattern": {
        "target_modules": ["q_proj", "down_proj"],
        "r": 4,
        "rank_pattern": {"down_proj": 8},
        "alpha_pattern": {"down_proj": 32},
    },
    "dora": {"target_modules": ["q_proj", "o_proj"], "r": 4, "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"], "r": 4},
    "saved": {"target_modules": ["v_proj"], "r": 4, "modules_to_save": ["lm_head"]},
    "regex": {"target_modules": r".*\.layers\.[01]\.self_attn\.(q|k)_proj", "r": 4},
    "layers": {"target_modules": ["q_proj"], "layers_to_transform": [0, 2], "layers_pattern": "layers", "r": 4},
    "bias": {"target_modules": ["q_proj", "v_proj"], "r": 4, "bias": "lora_only"},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5], "r": 4},
}
"""Name → settings of PEFT's LoraConfig."""
ROLES = (
    "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector", "weight", "bias", "lora_A.default",
    "modules_to_save", "base_layer", "lora_a", "lora_down", "lora_up",
)  # fmt: skip
ADDED: dict[str, Any] = {
    "r": 16,
    "peft_type": "LOHA",
    "use_dora": True,
    "use_rslora": True,
    "fan_in_fan_out": True,
    "target_modules": ["q_proj"],
    "target_parameters": ["self_attn.q_proj.weight"],
    "exclude_modules": ["q_proj"],
    "layers_to_transform": [0],
    "layers_pattern": "blocks",
    "modules_to_save": ["lm_head"],
    "rank_pattern": {"q_proj": 2},
    "alpha_pattern": {"q_proj": 2},
    "trainable_token_indices": [1, 2],
    "lora_alpha": 1,
    "lora_bias": True,
    "bias": "all",
    "task_type": "SEQ_CLS",
    "base_model_name_or_path": "elsewhere",
    "layer_replication": [[0, 2], [1, 3]],
    "alora_invocation_tokens": [1, 2],
    "inference_mode": False,
    "init_lora_weights": "pissa",
    "x_unknown": 1,
    "use_qalora": True,
    "ensure_weight_tying": True,
}
"""Keys that an adapter's config may get from another one."""
WORDS = (
    "",
    "x",
    "LORA",
    "LOHA",
    "IA3",
    "CAUSAL_LM",
    "SEQ_CLS",
    "none",
    "all",
    "lora_only",
    "q_proj",
    ".*",
    "base",
    "gaussian",
)


def build_base(**settings: Any) -> Any:
    """Return a small Llama of random numbers, always the same."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        **settings,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def build_adapters(folder: Path) -> list[Path]:
    """Write a folder for each adapter, with the base model beside it: ``NAME/base`` and ``NAME/adapter``."""
    import peft
    import torch

    written = []
    for name, settings in ADAPTERS.items():
        base = build_base(attention_bias=name == "bias")
        base.save_pretrained(folder / name / "base")
        model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(str(folder / name / "adapter"))
        path = folder / name / "adapter" / "adapter_config.json"
        written_config = json.loads(path.read_text())
        path.write_text(json.dumps({**written_config, "base_model_name_or_path": "base"}))
        written.append(folder / name)
    return written


def edit_adapter(folder: Path, dice: random.Random) -> str:
    """Edit the config, the tensors or the base model's size of an adapter, and say what was edited."""
    kind = dice.choice(["config"] * 5 + ["tensors"] * 4)
    if kind == "tensors":
        return f"tensors: {edit_tensors(folder / 'adapter' / 'adapter_model.safetensors', dice, ROLES)}"
    path = folder / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    key = dice.choice(sorted(config))
    way = dice.choice(["remove", "null", "add", "add", *["change"] * 4, "retype", "rename"])
    if way == "remove":
        del config[key]
    elif way == "null":
        config[key] = None
    elif way == "add":
        key = dice.choice(sorted(ADDED))
        config[key] = ADDED[key]
    elif way == "retype":
        config[key] = dice.choice(RETYPES)(config[key])
    elif way == "rename":
        config[f"{key}_"] = config.pop(key)
    elif isinstance(config[key], str):
        config[key] = dice.choice(WORDS)
    elif isinstance(config[key], list) and config[key] and isinstance(config[key][0], str):
        config[key] = dice.choice([[], config[key][1:], [*config[key], "k_proj"], ["x", *config[key]], "q_proj"])
    else:
        config[key] = change_value(config[key], dice)
    path.write_text(json.dumps(config))
    return f"config: {way} {key}" + ("" if way in ("remove", "null") else f" {json.dumps(config.get(key))[:80]}")
