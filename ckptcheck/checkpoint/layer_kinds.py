"""The rules by which configs give layers experts; fixtures/layer_patterns.py learns which rule an architecture follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec


class LayerRule(msgspec.Struct, frozen=True):
    """One way of configs to give layers experts."""

    name: str
    fields: tuple[str, ...]
    """The settings that it reads."""
    decide: Callable[..., bool]
    """Decides from the number of a layer and the values of the settings."""

    def has_experts(self, layer: int, values: Sequence[Any]) -> bool | None:
        """Return whether a layer has experts; None if the values do not decide it (null, or another type)."""
        try:
            return bool(self.decide(layer, *values))
        except (TypeError, IndexError, ZeroDivisionError, AttributeError):
            return None


def _by_name(name: str, fields: Sequence[tuple[str, ...]], decide: Callable[..., bool]) -> list[LayerRule]:
    return [LayerRule(name, keys, decide) for keys in fields]


RULES: tuple[LayerRule, ...] = (
    *_by_name("listed_kinds", [("mlp_layer_types",)], lambda layer, kinds: kinds[layer] == "sparse"),
    *_by_name(
        "from_layer_every",
        [("first_k_dense_replace", "moe_layer_freq")],
        lambda layer, first, step: layer >= first and layer % step == 0,
    ),
    *_by_name(
        "every_except",
        [("decoder_sparse_step", "mlp_only_layers")],
        lambda layer, step, dense: (layer + 1) % step == 0 and layer not in (dense or ()),
    ),
    *_by_name("from_layer", [("first_k_dense_replace",), ("num_dense_layers",)], lambda layer, first: layer >= first),
    *_by_name("listed_flags", [("moe_layer_freq",)], lambda layer, flags: bool(flags[layer])),
    *_by_name("listed_layers", [("moe_layers",)], lambda layer, listed: layer in listed),
    *_by_name(
        "period", [("expert_layer_period", "expert_layer_offset")], lambda layer, step, first: layer % step == first
    ),
    *_by_name("every", [("interleave_moe_layer_step",)], lambda layer, step: (layer + 1) % step == 0),
)
"""Every rule, in order of precedence."""
