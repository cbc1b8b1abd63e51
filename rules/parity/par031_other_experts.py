"""Trainer and engine route tokens to other experts.

## What it checks
Where both sides recorded routing: the share of tokens whose set of experts differs, layer by layer. A finding from half of
the tokens in one layer on, or a quarter over all.

## Why it matters
Another expert is another function. A tenth of all decisions flip by rounding in bfloat16, and most tokens flip in some
layer; a layer that disagrees in half of its tokens has another router, another order of experts, or another input.

## How to fix
Compare the router of that layer (`ckptcheck diff`), its bias and its dtype on both sides. Routing replay hides it.

## When it can be wrong
Routers that spread tokens by random or by load choose differently every time.

## Seen in
radixark/miles#2722, NVIDIA TensorRT-LLM#19501 (10 % of decisions), prime-rl#2952
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count
from ckptcheck.rule import Skip

LAYER, OVERALL = 0.5, 0.25


@rule(
    "PAR031",
    "other-experts",
    severity="warning",
    on="rollouts",
    when=lambda judged: judged.sound and {"engine_routing", "trainer_routing"} & judged.rollouts.columns.keys(),
)
def check(judged: Judged) -> Iterator[Problem]:
    found = judged.routing
    if found is None:
        raise Skip("it takes the routing of both sides, of the same layers and top k")
    shares, tokens = found
    worst = int(shares.argmax())
    if shares[worst] >= LAYER or shares.mean() >= OVERALL:
        text = f"{shares[worst]:.0%} of {count(tokens, 'token')} have other experts in layer {worst}, "
        text += f"{shares.mean():.1%} over all {count(len(shares), 'layer')}"
        yield Problem(
            text, key=f"layer {worst}", hint="compare the router of that layer, its bias and its dtype on both sides"
        )
