"""Shapes and biases of the common decoder families, where config.json and tensors must agree exactly.

Each entry follows the family's modeling file in transformers 5.23; a test compares it with transformers by building every
family with each flag on and off. Rules do not check families that are not listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckptcheck.checkpoint.config import HIDDEN, Config

Part = Literal["q_proj", "k_proj", "v_proj", "o_proj"]
QKVO: tuple[Part, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
QKV: tuple[Part, ...] = QKVO[:3]


@dataclass(frozen=True)
class DecoderFamily:
    """Shapes and biases of a decoder family."""

    bias_flag: str | None = None
    """The config key that turns the biases of the attention projections on; None where there is none."""
    bias_default: bool = False
    """Whether the projections have biases when the config does not contain the key."""
    biased: tuple[Part, ...] = QKVO
    """The projections that have a bias when biases are on."""
    gated: bool = False
    """Whether q_proj holds queries and gates, so twice the rows."""
    expert_width: str = "moe_intermediate_size"
    """The config key with the width of a routed expert."""
    gate: bool = True
    """Whether a dense feed-forward block has a gate_proj."""
    head_dim: int | None = None
    """The default of transformers where the config has no ``head_dim``; None where it follows from other settings."""
    kv_heads: int | None = None
    """The default of transformers where the config has no ``num_key_value_heads``; None for the number of heads."""


_FLAG = DecoderFamily("attention_bias")
FAMILIES: dict[str, DecoderFamily] = {
    "llama": _FLAG,
    "mistral": DecoderFamily(kv_heads=8),
    "ministral3": DecoderFamily(head_dim=128, kv_heads=8),
    "mixtral": DecoderFamily(expert_width="intermediate_size", kv_heads=8),
    "qwen2": DecoderFamily(bias_default=True, biased=QKV, kv_heads=32),
    "qwen2_moe": DecoderFamily("qkv_bias", bias_default=True, biased=QKV, kv_heads=16),
    "qwen3": DecoderFamily("attention_bias", head_dim=128, kv_heads=32),
    "qwen3_moe": DecoderFamily("attention_bias", kv_heads=4),
    "qwen3_next": DecoderFamily("attention_bias", gated=True, head_dim=256, kv_heads=2),
    "gemma": DecoderFamily("attention_bias", head_dim=256, kv_heads=16),
    "gemma2": DecoderFamily("attention_bias", head_dim=256, kv_heads=4),
    "gemma3_text": DecoderFamily("attention_bias", head_dim=256, kv_heads=4),
    "olmo": _FLAG,
    "olmo2": _FLAG,
    "olmo3": _FLAG,
    "olmoe": DecoderFamily("attention_bias", expert_width="intermediate_size"),
    "granite": _FLAG,
    "cohere": _FLAG,
    "cohere2": _FLAG,
    "smollm3": DecoderFamily("attention_bias", kv_heads=4),
    "glm": DecoderFamily("attention_bias", bias_default=True, biased=QKV, gate=False, head_dim=128, kv_heads=2),
    "glm4": DecoderFamily("attention_bias", bias_default=True, biased=QKV, gate=False, head_dim=128, kv_heads=2),
    "glm4_moe": DecoderFamily("attention_bias", biased=QKV, kv_heads=8),
    "gpt_oss": DecoderFamily("attention_bias", bias_default=True, head_dim=64, kv_heads=8),
    "starcoder2": DecoderFamily("use_bias", bias_default=True, kv_heads=2),
    "hunyuan_v1_dense": _FLAG,
    "apertus": DecoderFamily("attention_bias", gate=False),
    "arcee": DecoderFamily("attention_bias", gate=False),
}
"""model_type → family."""


def family_of(config: Config | None) -> DecoderFamily | None:
    """Return the family of the language model; None if FAMILIES does not list it."""
    if config is None:
        return None
    model_type = config.text.get("model_type") or config.model_type
    return FAMILIES.get(model_type) if isinstance(model_type, str) else None


def expects_biases(family: DecoderFamily, config: Config | None) -> bool:
    """Whether the family's attention projections have biases under this config."""
    if family.bias_flag is None or config is None:
        return family.bias_default
    return bool(config.get(family.bias_flag, family.bias_default))


def attention_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Map each attention tensor (name within a layer) to its shape; {} where the config does not give the numbers."""
    family = family_of(config)
    heads, hidden = config.number("num_attention_heads"), config.number(*HIDDEN)
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
    """Return a setting: if absent the family's default, if null the value derived from other settings.

    None where it is null although the family has a default: the value is then unknown.
    """
    if (value := config.number(name)) is not None:
        return value
    absent = name not in config.text and name not in config.value
    return (default or derived) if absent or default is None else None


def mlp_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Map each MLP tensor (name within a dense layer) to its shape; {} where the config does not give the numbers."""
    hidden, width = config.number(*HIDDEN), config.number("intermediate_size")
    if family_of(config) is None or hidden is None or width is None:
        return {}
    return {
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }


def expert_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Map each tensor of a routed expert (name within it) to its shape; {} where the config does not give the numbers."""
    family = family_of(config)
    hidden, width = config.number(*HIDDEN), config.number(family.expert_width) if family else None
    if hidden is None or width is None:
        return {}
    wide, narrow = (width, hidden), (hidden, width)
    return {
        **dict.fromkeys(("gate_proj.weight", "up_proj.weight", "w1.weight", "w3.weight"), wide),
        **dict.fromkeys(("down_proj.weight", "w2.weight"), narrow),
    }
