"""The gap grows from step to step.

## What it checks
Over at least 5 files of one run, in their order: the mean gap (mult_prob_error less 1) of the last third is at least twice that
of the first third and 0.002 more, with most steps rising.

## Why it matters
A gap that drifts upward comes from a sync that leaves something behind: a part of the weights, a KV cache, an adapter. It
disappears when the engine restarts, which is why teams find it late.

## How to fix
Run `ckptcheck refit`, and reset the prefix cache after every update.

## When it can be wrong
A policy that becomes more random has a larger gap in nats without any fault.

## Seen in
volcengine/verl#7495 (36 times over two months), NeMo-RL#4018 (17 refits without a reset), vllm-project/vime#64 (0.011 to
0.036)
"""

from collections.abc import Iterator
from itertools import combinations

from ckptcheck import Problem, rule
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.text.formatting import count

LEAST = 5
"""Files below which a trend may be chance."""


@rule("PAR040", "rising-gap", severity="warning", on="rollout-series", when=lambda series: len(series.gaps) >= LEAST)
def check(series: RolloutSeries) -> Iterator[Problem]:
    values = [gap.mult_prob_error - 1 for gap in series.gaps]
    third = len(values) // 3
    before, after = sum(values[:third]) / third, sum(values[-third:]) / third
    rising = sum(b > a for a, b in combinations(values, 2)) / (len(values) * (len(values) - 1) / 2)
    if after > 2 * before and after - before > 0.002 and rising > 0.75:
        text = f"mult_prob_error rises from {1 + before:.5g} in the first {count(third, 'file')} to {1 + after:.5g} in the last"
        yield Problem(
            text, hint="ckptcheck refit shows what a sync leaves behind; reset the prefix cache after every update"
        )
