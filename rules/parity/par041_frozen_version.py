"""Later steps were drawn with the same weights, or older ones.

## What it checks
Over several files that record their step: the newest weight version of the tokens rises with the step.

## Why it matters
A version that stands still is an engine that no sync reaches, or a version that nobody sets. Either way corrections for
staleness are inert.

## How to fix
Pass the step to the engine's update call, and see whether updates succeed: engines answer 200 when they do not.

## When it can be wrong
Several steps trained on one batch of rollouts share its version.

## Seen in
radixark/miles#2244, rllm#622, vLLM (the version stays `default`)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.parity.series import Series
from ckptcheck.rule import Skip


@rule("PAR041", "frozen-version", severity="warning", on="rollout-series")
def check(series: Series) -> Iterator[Problem]:
    known = series.versions
    if len(known) < 2:
        raise Skip("fewer than two steps have weight versions that are numbers")
    for (step, version), (later, other) in pairwise(known):
        if later > step and other <= version:
            what = "is still" if other == version else f"falls from {version} to"
            text = f"the newest weight version {what} {other} at step {later}, after step {step}"
            yield Problem(text, hint="pass the step to the update call, and see whether updates succeed")
            return
