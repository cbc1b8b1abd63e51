"""Finds tokens that the two sides send to different experts, from the logits of the routers."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.live.runtime.engines.activations import Activations


@dataclass(frozen=True)
class ReroutedLayer:
    """A layer in which tokens go to different experts."""

    layer: int
    """Index of the decoder layer."""
    tokens: tuple[int, ...]
    """Positions of the tokens whose sets of experts differ."""
    total: int
    """How many tokens the prompt has."""
    margin: float
    """The largest distance, in the reference's logits, between an expert of the reference and the one that replaces it on the other
    side; near 0, rounding decides."""


def find_rerouted_tokens(reference: Activations, other: Activations, experts_per_token: int) -> list[ReroutedLayer]:
    """Return the layers in which tokens go to different experts. Empty for a dense model (experts_per_token 0)."""
    import numpy as np

    layers = []
    for name, a in reference.items():
        if not name.endswith(".mlp.gate") or name not in other or other[name].shape != a.shape:
            continue
        b = other[name]
        if not 0 < experts_per_token < a.shape[1] or not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        reference_experts, other_experts = (
            np.argsort(-logits, axis=1, kind="stable")[:, :experts_per_token] for logits in (a, b)
        )
        rerouted, margin = [], 0.0
        for token in range(len(a)):
            lost_experts, gained_experts = (
                set(reference_experts[token]) - set(other_experts[token]),
                set(other_experts[token]) - set(reference_experts[token]),
            )
            if lost_experts:
                rerouted.append(token)
                margin = max(margin, float(min(a[token][list(lost_experts)]) - max(a[token][list(gained_experts)])))
        if rerouted:
            layers.append(ReroutedLayer(int(name.split(".")[2]), tuple(rerouted), len(a), margin))
    return layers
