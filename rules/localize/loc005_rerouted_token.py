"""Routers send tokens to other experts on the other side.

## What it checks
In every mixture-of-experts layer before the sides diverge: the set of experts of each token, computed from the router's logits.

## Why it matters
- A token that goes to another expert gets another output, far beyond rounding, and a gradient for an expert that did not serve
  it.
- Rounding decides for tokens on the edge between two experts. In large models such tokens are the main part of the gap between
  training and inference.

## How to fix
- Margins near 0: compute the router in float32 on both sides, or replay the engine's routing in the trainer.
- Larger margins: the router itself differs; see LOC001.

## When it can be wrong
The rule compares the order of the logits. Routers that add a correction bias or choose groups first choose differently.

## Seen in
arXiv:2510.11370 (rollout routing replay), THUDM/slime (`--use-rollout-routing-replay`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization
from ckptcheck.text.formatting import count, format_layers


@rule(
    "LOC005",
    "rerouted-token",
    severity="warning",
    on="localization",
    when=lambda evidence: evidence.experts_per_token > 0,
)
def check(evidence: Localization) -> Iterator[Problem]:
    for part in evidence.replicas:
        if not part.rerouted_layers:
            continue
        first_layer = part.rerouted_layers[0]
        later_layers = [rerouted_layer.layer for rerouted_layer in part.rerouted_layers[1:]]
        yield Problem(
            f"{len(first_layer.tokens):,} of {count(first_layer.total, 'token')} {'goes' if len(first_layer.tokens) == 1 else 'go'}"
            f" to other experts in layer {first_layer.layer} (margin up to {first_layer.margin:.2g} in the router's logits)"
            + (f"; also in {format_layers(later_layers)}" if later_layers else "")
            + (f"; on {part.ranks}" if part.ranks else ""),
            key=f"model.layers.{first_layer.layer}.mlp.gate",
            hint="compute the router in float32 on both sides, or replay the engine's routing in the trainer",
        )
