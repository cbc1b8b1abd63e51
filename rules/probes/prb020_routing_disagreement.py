"""Tokens go to other experts in the engine than in the trainer.

## What it checks
The same tokens are routed on both sides, and the sets of experts are compared layer by layer. In float32 on both sides at most
1 % of the decisions differ, in narrower types 15 %.

## Why it matters
A token that goes to another expert gets another logprob, by much. Some ten percent of decisions are reported to differ in bfloat16;
more, or any in float32, means another router: its weight, its type, its bias, the order of softmax and top-k.

## How to fix
Compare the routers (`ckptcheck refit`), compute them in float32 on both sides, or replay the engine's routing in training.

## When it can be wrong
Routers whose experts are nearly alike (fresh models) have many ties.

## Seen in
NVIDIA/TensorRT-LLM#19501 quotes 10 % of decisions; radixark/miles#2722; QwenLM/Qwen3#687 on the order of softmax and top-k
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.routing import RoutingSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked

EXACT, NARROW = 0.01, 0.15
"""Shares of decisions: rounding in float32 moves next to none; published figures for bfloat16 are about 0.1."""


@rule("PRB020", "routing-disagreement", severity="warning", on="probe", when=asked("routing"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("routing", RoutingSeen)
    limit = EXACT if set(seen.dtypes) == {"float32"} else NARROW
    if seen.share > limit:
        worst = max(range(len(seen.layers)), key=lambda layer: seen.layers[layer])
        yield Problem(
            f"{seen.share:.1%} of the routing decisions differ between engine and trainer, most in layer {worst}"
            f" of those with experts;"
            f" {seen.moved} of {seen.tokens} tokens go elsewhere in at least one",
            hint="compare the routers' weights and types; replay the engine's routing in training if the rest is rounding",
        )
