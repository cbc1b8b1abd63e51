"""Whether both sides send tokens to the same experts, from what the routers computed."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.engines.activations import Activations


@dataclass(frozen=True)
class Rerouted:
    """One layer. tokens: those whose set of experts differs, of `total`. margin: the largest distance, in the reference's
    logits, between the last expert chosen and the one that took its place: near 0, rounding decides.
    """

    layer: int
    tokens: tuple[int, ...]
    total: int
    margin: float


def rerouted(reference: Activations, other: Activations, chosen: int) -> list[Rerouted]:
    """Return the layers in which tokens go elsewhere. chosen: experts of a token."""
    import numpy as np

    found = []
    for name, a in reference.items():
        if not name.endswith(".mlp.gate") or name not in other or other[name].shape != a.shape:
            continue
        b = other[name]
        if not 0 < chosen < a.shape[1] or not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        here, there = (np.argsort(-each, axis=1, kind="stable")[:, :chosen] for each in (a, b))
        moved, margin = [], 0.0
        for token in range(len(a)):
            lost, won = set(here[token]) - set(there[token]), set(there[token]) - set(here[token])
            if lost:
                moved.append(token)
                margin = max(margin, float(min(a[token][list(lost)]) - max(a[token][list(won)])))
        if moved:
            found.append(Rerouted(int(name.split(".")[2]), tuple(moved), len(a), margin))
    return found
