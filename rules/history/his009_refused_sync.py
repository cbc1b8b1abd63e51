"""An update call failed.

## What it checks
Every recorded sync was answered with success.

## Why it matters
What the engine holds after a failed update is not defined: some buckets may be loaded and others not.

## How to fix
As its message says; then sync again before the next rollout.

## When it can be wrong
SGLang answers False to an update that it did apply, where requests were running and its cache could not be flushed.

## Seen in
SGLang 0.5.23 (`in_place` pauses), vLLM 0.32 (a failed `reload_weights` kills the engine at its next request)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History


@rule("HIS009", "refused-sync", severity="error", on="history")
def check(history: History) -> Iterator[Problem]:
    for index, sync in enumerate(history.syncs):
        if not sync.ok:
            yield Problem(
                f"{history.name(index)}: the update failed: {sync.message or 'no reason was given'}",
                hint="sync again before the next rollout",
            )
