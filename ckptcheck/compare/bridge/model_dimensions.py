"""The dimensions of a model that its tensor layouts depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import EXPERTS, HEADS, HIDDEN, LAYERS, Config


class ModelDimensions(msgspec.Struct, frozen=True):
    """Dimensions read from a config.json or from Megatron's arguments; None where neither says."""

    # Without the layers of multi-token prediction.
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    # Key-value heads: Megatron's query groups.
    kv_heads: int | None = None
    head_dim: int | None = None
    experts: int | None = None
    vocab_size: int | None = None

    @classmethod
    def from_config(cls, config: Config | None) -> ModelDimensions:
        """Read the dimensions from a config.json, with the defaults of transformers."""
        if config is None:
            return cls()
        hidden, heads = config.integer(*HIDDEN), config.integer(*HEADS)
        head_dim = config.number("head_dim")
        if head_dim is None and hidden and heads:
            head_dim = hidden // heads
        kv_heads = config.number("num_key_value_heads") or heads
        return cls(
            config.integer(*LAYERS),
            hidden,
            heads,
            kv_heads,
            head_dim,
            config.integer(*EXPERTS),
            config.integer("vocab_size"),
        )

    @classmethod
    def from_megatron_args(cls, args: Mapping[str, Any]) -> ModelDimensions:
        """Read the dimensions from the arguments that Megatron-LM stores in common.pt."""

        def positive_int(name: str) -> int | None:
            value = args.get(name)
            return value if type(value) is int and value > 0 else None

        hidden, heads = positive_int("hidden_size"), positive_int("num_attention_heads")
        head_dim = positive_int("kv_channels") or (hidden // heads if hidden and heads else None)
        return cls(
            positive_int("num_layers"), hidden, heads, positive_int("num_query_groups") or heads, head_dim,
            positive_int("num_experts"),
            positive_int("vocab_size"),
        )  # fmt: skip
