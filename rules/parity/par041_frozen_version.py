"""Later steps were drawn with the same weights, or with older ones.

## What it checks
Over several files that record their step: the newest weight version of the tokens rises with the step.

## Why it matters
A version that stands still means that no sync reaches the engine, or that the job does not set the version. Either way
corrections for staleness have no effect.

## How to fix
Pass the step to the engine's update call, and check whether updates succeed: engines answer 200 when they do not.

## When it can be wrong
Several steps that train on one batch of rollouts share its version.

## Seen in
radixark/miles#2244, rllm#622, vLLM (the version stays `default`)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.series import RolloutSeries


@rule("PAR041", "frozen-version", severity="warning", on="rollout-series")
def check(series: RolloutSeries) -> Iterator[Problem]:
    versions = series.versions
    if len(versions) < 2:
        raise Skip("fewer than two steps have weight versions that are numbers")
    for (step, version), (later, other) in pairwise(versions):
        if later > step and other <= version:
            verb = "is still" if other == version else f"falls from {version} to"
            text = f"the newest weight version {verb} {other} at step {later}, after step {step}"
            yield Problem(text, hint="pass the step to the update call, and check whether updates succeed")
            return
