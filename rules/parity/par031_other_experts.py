"""Trainer and engine route tokens to different experts.

## What it checks
Where both sides recorded routing: the share of tokens whose set of experts differs, layer by layer. The rule reports half of the
tokens or more in one layer, or a quarter over all layers.

## Why it matters
Another expert is another function. In bfloat16 rounding flips a tenth of all decisions, and most tokens flip in some layer. A
layer that disagrees for half of its tokens has another router, another order of experts, or another input.

## How to fix
Compare the router of that layer (`ckptcheck diff`), its bias and its dtype on both sides. Routing replay only hides the
difference.

## When it can be wrong
Routers that spread tokens at random or by load choose differently every time.

## Seen in
radixark/miles#2722, NVIDIA TensorRT-LLM#19501 (10 % of decisions), prime-rl#2952
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LAYER, OVERALL = 0.5, 0.25


@rule(
    "PAR031",
    "other-experts",
    severity="warning",
    on="rollouts",
    when=lambda evidence: (
        evidence.is_well_formed and {"engine_routing", "trainer_routing"} & evidence.rollouts.columns.keys()
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    disagreement = evidence.routing_disagreement
    if disagreement is None:
        raise Skip("the file lacks the routing of both sides for the same layers and top k")
    shares, tokens = disagreement
    worst = int(shares.argmax())
    if shares[worst] >= LAYER or shares.mean() >= OVERALL:
        text = f"{shares[worst]:.0%} of {count(tokens, 'token')} go to other experts in layer {worst}, "
        text += f"{shares.mean():.1%} over all {count(len(shares), 'layer')}"
        yield Problem(
            text, key=f"layer {worst}", hint="compare the router of that layer, its bias and its dtype on both sides"
        )
