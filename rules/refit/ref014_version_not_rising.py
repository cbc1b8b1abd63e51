"""The weight version that the engine reports does not rise.

## What it checks
- If the engine reports a version after an update, it differs from the one before. If both are numbers, the later one
  is larger.

## Why it matters
- Off-policy corrections and filters for stale samples compute with versions. A version that stands still switches
  them off; a version that falls makes the staleness negative.

## How to fix
- Pass the step as the version to the update call.

## When it can be wrong
- Versions that are hashes are not numbers; the rule then checks only that they change.

## Seen in
radixark/miles#2244, vLLM 0.32 (the version stays `default` unless finish_weight_update is given one)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace


def _reported_versions(trace: RefitTrace) -> list[str]:
    return [sync.answer.weight_version for sync in trace.syncs if sync.answer.weight_version is not None]


@rule(
    "REF014", "version-not-rising", severity="error", on="refit", when=lambda trace: len(_reported_versions(trace)) > 1
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for before, after in pairwise(_reported_versions(trace)):
        are_numbers = before.lstrip("-").isdecimal() and after.lstrip("-").isdecimal()
        if (are_numbers and int(after) <= int(before)) or before == after:
            yield Problem(
                f"the engine's weight version went from {before} to {after}", hint="pass the step to the update call"
            )
            return
