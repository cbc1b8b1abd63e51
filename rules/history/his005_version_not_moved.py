"""A sync did not raise the engine's weight version.

## What it checks
- If the engine reports a version, it differs after every step. If both versions are numbers, the later one is larger.

## Why it matters
- Off-policy corrections and filters for stale samples compute with versions. A version that stands still switches
  them off; a version that falls makes the staleness negative.

## How to fix
- Pass the step as the version to the update call.

## When it can be wrong
- Versions that are hashes are not numbers; the rule then checks only that they change.

## Seen in
radixark/miles#2244 (57 to 1 on failover), vLLM 0.32 (the version stays `default` unless finish_weight_update is given one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, SyncPair


def _pairs_with_versions(history: History) -> list[SyncPair]:
    return [
        pair for pair in history.version_pairs if pair.before.version is not None and pair.after.version is not None
    ]


@rule(
    "HIS005",
    "version-not-moved",
    severity="error",
    on="history",
    when=lambda history: bool(_pairs_with_versions(history)),
)
def check(history: History) -> Iterator[Problem]:
    for pair in _pairs_with_versions(history):
        before, after = pair.before.version or "", pair.after.version or ""
        falls = before.isdecimal() and after.isdecimal() and int(after) < int(before)
        if falls or (pair.is_step and before == after):
            yield Problem(
                f"{history.label(pair.index)}: the engine's weight version "
                + (f"fell from {before} to {after}" if falls else f'did not change (it is still "{after}")'),
                hint="pass the step to the update call as the version",
            )
            return
