"""Engine and trainer route tokens to different experts.

## What it checks
Both sides route the same tokens, and the probe compares the sets of experts layer by layer. At most 1 % of the decisions differ if
both sides compute in float32, at most 15 % in narrower dtypes.

## Why it matters
A token that goes to another expert gets a very different logprob. Reports say that some ten percent of decisions differ in
bfloat16. More than that, or any in float32, means another router: its weight, its dtype, its bias, the order of softmax and top-k.

## How to fix
Compare the routers (`ckptcheck refit`), compute them in float32 on both sides, or replay the engine's routing in training.

## When it can be wrong
Routers whose experts are nearly alike (fresh models) have many ties.

## Seen in
NVIDIA/TensorRT-LLM#19501 quotes 10 % of decisions; radixark/miles#2722; QwenLM/Qwen3#687 on the order of softmax and top-k
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.live.experiments.probes.two_sides import RoutingResult

EXACT, NARROW = 0.01, 0.15
"""Shares of decisions: rounding in float32 moves next to none; published figures for bfloat16 are about 0.1."""


@rule("PRB020", "routing-disagreement", severity="warning", on="probe", when=requires_probe("routing"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("routing", RoutingResult)
    limit = EXACT if set(result.dtypes) == {"float32"} else NARROW
    if result.share > limit:
        worst = max(range(len(result.layers)), key=lambda layer: result.layers[layer])
        yield Problem(
            f"{result.share:.1%} of the routing decisions differ between engine and trainer, most in layer"
            f" {worst} of those with experts; {result.rerouted_tokens} of {result.tokens} tokens go to"
            f" another expert in at least one",
            hint="compare the routers' weights and types; replay the engine's routing in training if the rest is rounding",
        )
