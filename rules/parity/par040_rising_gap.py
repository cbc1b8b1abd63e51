"""The gap grows from step to step, or at one step.

## What it checks
Over at least 5 files of one run, in their order: the mean gap (mult_prob_error less 1) of the last third is at least twice that
of the first third and 0.002 more, with most steps rising. Or it jumps: from one file on every gap is twice and 0.002 more than
every one before, and no longer doubles, with at least two files on each side.

## Why it matters
A gap that drifts upward comes from a sync that leaves something behind: a part of the weights, a KV cache, an adapter. It
disappears when the engine restarts, which is why teams find it late. A gap that jumps began with something that changed at that
step: a resume, a restart, an update that one engine missed.

## How to fix
Run `ckptcheck refit`, and reset the prefix cache after every update. Look at what the job did at the step of a jump.

## When it can be wrong
A policy that becomes more random has a larger gap in nats without any fault.

## Seen in
volcengine/verl#7495 (36 times over two months), NeMo-RL#4018 (17 refits without a reset), vllm-project/vime#64 (0.011 to
0.036)
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from ckptcheck import Problem, rule
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.text.formatting import count

LEAST = 5
"""Files below which a trend may be chance."""
SIDE = 2
"""Fewest files before and after a jump."""
FACTOR, SMALL = 2, 0.002
"""How many times the gap grows, and by how much of mult_prob_error at least."""


@rule("PAR040", "rising-gap", severity="warning", on="rollout-series", when=lambda series: len(series.gaps) >= LEAST)
def check(series: RolloutSeries) -> Iterator[Problem]:
    values = [gap.mult_prob_error - 1 for gap in series.gaps]
    if (place := _find_jump(values)) is not None:
        member = [each for each in series.members if each.gap is not None and each.gap.sampled_by == "engine"][place]
        where = f"step {member.step}" if member.step is not None else member.target
        yield Problem(
            f"mult_prob_error jumps from at most {1 + max(values[:place]):.5g} to {1 + values[place]:.5g} at {where}, and stays"
            f" above {1 + min(values[place:]):.5g}",
            key=where,
            hint="look at what changed there: ckptcheck refit shows what a sync leaves behind",
        )
        return
    third = len(values) // 3
    before, after = sum(values[:third]) / third, sum(values[-third:]) / third
    rising = sum(b > a for a, b in combinations(values, 2)) / (len(values) * (len(values) - 1) / 2)
    if after > FACTOR * before and after - before > SMALL and rising > 0.75:
        text = f"mult_prob_error rises from {1 + before:.5g} in the first {count(third, 'file')} to {1 + after:.5g} in the last"
        yield Problem(
            text, hint="ckptcheck refit shows what a sync leaves behind; reset the prefix cache after every update"
        )


def _find_jump(values: Sequence[float]) -> int | None:
    """Return the first place from which on every value is far above every one before; None where there is none."""
    for place in range(SIDE, len(values) - SIDE + 1):
        before, after = max(values[:place]), min(values[place:])
        # what grows on and on is no jump
        if after > FACTOR * before and after - before > SMALL and max(values[place:]) <= FACTOR * after:
            return place
    return None
