"""Routers send tokens to other experts on the other side.

## What it checks
In every mixture-of-experts layer before the sides part, each token's set of experts, from the logits of the router.

## Why it matters
A token that goes to another expert gets another output, far beyond rounding, and a gradient for an expert that did not serve it.
Rounding decides for tokens on the edge between two experts; in large models such tokens are the main part of the gap between
training and inference.

## How to fix
Where margins are near 0: compute the router in float32 on both sides, or replay the engine's routing in the trainer. Where they are
not, the router itself differs: see LOC001.

## When it can be wrong
It compares the logits' order. Routers that add a correction bias or choose groups first choose otherwise than that order.

## Seen in
arXiv:2510.11370 (rollout routing replay), THUDM/slime (`--use-rollout-routing-replay`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.localize.localization import Localization
from ckptcheck.phrase import count, ranges


@rule("LOC005", "rerouted-token", severity="warning", on="localization", when=lambda seen: seen.chosen > 0)
def check(seen: Localization) -> Iterator[Problem]:
    if not seen.rerouted:
        return
    first = seen.rerouted[0]
    layers = ranges(each.layer for each in seen.rerouted)
    yield Problem(
        f"{count(len(first.tokens), 'token goes', 'tokens go')} to other experts in layer {first.layer}, of {first.total} "
        f"(margin up to {first.margin:.2g} in the router's logits)"
        + (f"; so it is in layers {layers}" if seen.rerouted[1:] else ""),
        key=f"model.layers.{first.layer}.mlp.gate",
        hint="compute the router in float32 on both sides, or replay the engine's routing in the trainer",
    )
