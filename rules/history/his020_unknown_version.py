"""Responses carry a weight version that no sync of the record gave the engine.

## What it checks
- `--rollouts` names responses whose tokens carry weight versions, and the record has the versions that the engine reported.
- Each version is one that the engine had before or after a sync. Versions that are numbers and older than the record are left out.

## Why it matters
Trainers weigh old samples by the version that they carry: importance sampling, the limit of staleness, the choice of logprobs to
recompute. A version that no sync gave comes from an engine that missed the syncs, that restarted, or that serves another job.

## How to fix
Find the engine that answered: `ckptcheck attach` asks running servers for their versions and weights.

## When it can be wrong
The record is of another job, or ends before the responses. A job that syncs two groups of engines has a record for each.

## Seen in
radixark/miles#2244 (after a failover the version jumps backwards, and the filter for stale samples lets them in)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule("HIS020", "unknown-version", severity="warning", on="history", when=lambda history: history.responses is not None)
def check(history: History) -> Iterator[Problem]:
    known = {version for sync in history.syncs for version in (sync.before, sync.version) if version is not None}
    if history.responses is None or not known:
        raise Skip("the record has no weight versions")
    carried = history.responses.responses
    if not carried:
        raise Skip(f"the responses of {history.responses.target} carry no weight versions")
    oldest = min((int(version) for version in known if version.isdecimal()), default=None)
    unknown = [
        version
        for version in carried
        if version not in known and not (oldest is not None and version.isdecimal() and int(version) < oldest)
    ]
    if unknown:
        number = sum(carried[version] for version in unknown)
        yield Problem(
            f"{count(number, 'response carries', 'responses carry')} weight versions that no sync gave the engine:"
            f" {join_truncated(unknown)}; the last sync gave"
            f" {next(sync.version for sync in reversed(history.syncs) if sync.version is not None)}",
            file=history.responses.target,
            hint="find the engine that answered: ckptcheck attach asks servers for their versions",
        )
