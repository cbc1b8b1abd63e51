"""The run and its reference differ in settings that change what a logprob is.

## What it checks
What both runs record, and what is not the same: the model, the kind of logprobs (raw or processed), temperature, top-p and top-k of
sampling, the trainer's temperature, and the dtypes of engine and trainer. The engine's name and version may differ: that is what
such a comparison is for.

## Why it matters
Then several things changed at once, and a curve that parts does not say which of them is the cause.

## How to fix
Set these settings alike in both runs, one change at a time, and write down what the engine's version would otherwise decide.

## When it can be wrong
The setting is the very change that the two runs should show.

## Seen in
PipelineRL's first run on vLLM V1: several V1-only defaults were on, so it was no fair baseline
(https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.run_comparison import RunComparison


@rule("PAR046", "unequal-runs", severity="warning", on="rollout-runs")
def check(runs: RunComparison) -> Iterator[Problem]:
    if unlike := runs.find_unlike_settings():
        yield Problem(
            f"the run differs from the reference (in brackets) in {', '.join(unlike)}",
            hint="make them alike, or read the curves as the effect of all of these together",
        )
