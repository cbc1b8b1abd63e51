"""Shapes and biases of the common decoder families, where config.json and tensors must agree exactly.

Each entry was read off the family's modeling file in transformers 5.23 and is held to it by a test that builds every
family with each flag on and off. A family that is not here is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckptcheck.checkpoint.config import HIDDEN, Config

Part = Literal["q_proj", "k_proj", "v_proj", "o_proj"]
QKVO: tuple[Part, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
QKV: tuple[Part, ...] = QKVO[:3]


@dataclass(frozen=True)
class Family:
    """How a family's attention is laid out.

    bias_flag: the setting that turns the projections' biases on, None where none does. bias_default: what holds
    without it. biased: the projections that have a bias then. gated: q_proj holds queries and gates, twice the rows.
    expert_width: the setting with the width of a routed expert.
    gate: a dense feed-forward block has a gate_proj.
    head_dim, kv_heads: what transformers takes where the config does not name them, None for what follows from the others.
    """

    bias_flag: str | None = None
    bias_default: bool = False
    biased: tuple[Part, ...] = QKVO
    gated: bool = False
    expert_width: str = "moe_intermediate_size"
    gate: bool = True
    head_dim: int | None = None
    kv_heads: int | None = None


_FLAG = Family("attention_bias")
FAMILIES: dict[str, Family] = {
    "llama": _FLAG,
    "mistral": Family(kv_heads=8),
    "ministral3": Family(head_dim=128, kv_heads=8),
    "mixtral": Family(expert_width="intermediate_size", kv_heads=8),
    "qwen2": Family(bias_default=True, biased=QKV, kv_heads=32),
    "qwen2_moe": Family("qkv_bias", bias_default=True, biased=QKV, kv_heads=16),
    "qwen3": Family("attention_bias", head_dim=128, kv_heads=32),
    "qwen3_moe": Family("attention_bias", kv_heads=4),
    "qwen3_next": Family("attention_bias", gated=True, head_dim=256, kv_heads=2),
    "gemma": Family("attention_bias", head_dim=256, kv_heads=16),
    "gemma2": Family("attention_bias", head_dim=256, kv_heads=4),
    "gemma3_text": Family("attention_bias", head_dim=256, kv_heads=4),
    "olmo": _FLAG,
    "olmo2": _FLAG,
    "olmo3": _FLAG,
    "olmoe": _FLAG,
    "granite": _FLAG,
    "cohere": _FLAG,
    "cohere2": _FLAG,
    "smollm3": Family("attention_bias", kv_heads=4),
    "glm": Family("attention_bias", bias_default=True, biased=QKV, gate=False, head_dim=128, kv_heads=2),
    "glm4": Family("attention_bias", bias_default=True, biased=QKV, gate=False, head_dim=128, kv_heads=2),
    "glm4_moe": Family("attention_bias", biased=QKV, kv_heads=8),
    "gpt_oss": Family("attention_bias", bias_default=True, head_dim=64, kv_heads=8),
    "starcoder2": Family("use_bias", bias_default=True, kv_heads=2),
    "hunyuan_v1_dense": _FLAG,
    "apertus": Family("attention_bias", gate=False),
    "arcee": Family("attention_bias", gate=False),
}
"""model_type → family."""


def family_of(config: Config | None) -> Family | None:
    """Return the family of the language model, None if it is not one that is judged."""
    if config is None:
        return None
    found = config.text.get("model_type") or config.model_type
    return FAMILIES.get(found) if isinstance(found, str) else None


def biases_expected(family: Family, config: Config | None) -> bool:
    """Whether the family's attention projections have biases under this config."""
    if family.bias_flag is None or config is None:
        return family.bias_default
    return bool(config.get(family.bias_flag, family.bias_default))


def attention_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return name within a layer → shape, as far as the config gives the numbers."""
    family = family_of(config)
    heads, hidden = config.integer("num_attention_heads"), config.integer(*HIDDEN)
    if family is None or not heads or not hidden:
        return {}
    groups = _or_default(config, "num_key_value_heads", family.kv_heads, heads)
    width = _or_default(config, "head_dim", family.head_dim, hidden // heads)
    if groups is None or width is None:
        return {}
    rows = {
        "q_proj": heads * width * (1 + family.gated),
        "k_proj": groups * width,
        "v_proj": groups * width,
        "o_proj": hidden,
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for part, number in rows.items():
        shapes[f"self_attn.{part}.weight"] = (number, heads * width if part == "o_proj" else hidden)
        shapes[f"self_attn.{part}.bias"] = (number,)
    return shapes


def _or_default(config: Config, name: str, default: int | None, derived: int) -> int | None:
    """Return a setting; where it is absent the family's default, where it is null what follows from the other settings.

    None where it is null and the family has a default: nobody can tell then.
    """
    if (value := config.integer(name)) is not None:
        return value
    absent = name not in config.text and name not in config.value
    return (default or derived) if absent or default is None else None


def mlp_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return name within a dense layer → shape, as far as the config gives the numbers."""
    hidden, width = config.integer(*HIDDEN), config.integer("intermediate_size")
    if family_of(config) is None or not hidden or not width:
        return {}
    return {
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }


def expert_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return name within a routed expert → shape, as far as the config gives the numbers."""
    family = family_of(config)
    hidden, width = config.integer(*HIDDEN), config.integer(family.expert_width) if family else None
    if not hidden or not width:
        return {}
    wide, narrow = (width, hidden), (hidden, width)
    return {
        **dict.fromkeys(("gate_proj.weight", "up_proj.weight", "w1.weight", "w3.weight"), wide),
        **dict.fromkeys(("down_proj.weight", "w2.weight"), narrow),
    }
