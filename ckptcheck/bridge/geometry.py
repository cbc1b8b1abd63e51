"""The numbers of a model that its layouts depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptcheck.checkpoint.config import EXPERTS, HEADS, HIDDEN, LAYERS, Config
from ckptcheck.checkpoint.families import family_of


@dataclass(frozen=True)
class Geometry:
    """layers: without those of multi-token prediction. groups: of queries that share a key and a value.

    None where neither config nor arguments tell.
    """

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    groups: int | None = None
    head_dim: int | None = None
    experts: int | None = None
    vocabulary: int | None = None

    @classmethod
    def of_config(cls, config: Config | None) -> Geometry:
        """Read it off a config.json, filling in what transformers fills in."""
        if config is None:
            return cls()
        family = family_of(config)
        hidden, heads = config.integer(*HIDDEN), config.integer(*HEADS)
        head_dim = config.integer("head_dim") or (family.head_dim if family else None)
        if head_dim is None and hidden and heads:
            head_dim = hidden // heads
        groups = config.integer("num_key_value_heads") or (family.kv_heads if family else None) or heads
        return cls(
            config.integer(*LAYERS),
            hidden,
            heads,
            groups,
            head_dim,
            config.integer(*EXPERTS),
            config.integer("vocab_size"),
        )

    @classmethod
    def of_args(cls, args: Mapping[str, Any]) -> Geometry:
        """Read it off the arguments that Megatron-LM keeps in common.pt."""

        def whole(name: str) -> int | None:
            value = args.get(name)
            return value if type(value) is int and value > 0 else None

        hidden, heads = whole("hidden_size"), whole("num_attention_heads")
        head_dim = whole("kv_channels") or (hidden // heads if hidden and heads else None)
        return cls(
            whole("num_layers"), hidden, heads, whole("num_query_groups") or heads, head_dim, whole("num_experts"),
            whole("vocab_size"),
        )  # fmt: skip
