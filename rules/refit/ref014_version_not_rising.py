"""The weight version that the engine reports does not rise.

## What it checks
Where the engine reports a version after an update, it is another one than before, and a number that is larger.

## Why it matters
Off-policy corrections and filters for stale samples count versions. One that stands still makes them inert, one that falls makes
staleness negative.

## How to fix
Pass the step as the version to the update call.

## When it can be wrong
Versions that are hashes are no numbers: only that they change is checked then.

## Seen in
radixark/miles#2244, vLLM 0.32 (the version stays `default` unless finish_weight_update is given one)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import RefitTrace


def _told(trace: RefitTrace) -> list[str]:
    return [sync.answer.version for sync in trace.syncs if sync.answer.version is not None]


@rule("REF014", "version-not-rising", severity="error", on="refit", when=lambda trace: len(_told(trace)) > 1)
def check(trace: RefitTrace) -> Iterator[Problem]:
    told = _told(trace)
    for before, after in pairwise(told):
        numbers = before.lstrip("-").isdecimal() and after.lstrip("-").isdecimal()
        if (numbers and int(after) <= int(before)) or before == after:
            yield Problem(f"the weight version went from {before} to {after}", hint="pass the step to the update call")
            return
