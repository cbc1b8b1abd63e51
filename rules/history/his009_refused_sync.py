"""An update call failed.

## What it checks
- Every recorded sync was answered with success.

## Why it matters
- After a failed update, what the engine holds is undefined: some buckets may be loaded and others not.

## How to fix
- Do what the engine's message says, then sync again before the next rollout.

## When it can be wrong
- SGLang answers False to an update that it did apply, if requests were running and it could not flush its cache.

## Seen in
SGLang 0.5.23 (`in_place` pauses), vLLM 0.32 (a failed `reload_weights` kills the engine at its next request)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History


@rule("HIS009", "refused-sync", severity="error", on="history")
def check(history: History) -> Iterator[Problem]:
    refused: dict[tuple[str, str], list[int]] = {}
    for index, sync in enumerate(history.syncs):
        if not sync.ok:
            refused.setdefault((sync.run, sync.message), []).append(index)
    for (_, message), indices in refused.items():
        yield Problem(
            f"{history.label(indices[0])}: the update failed: {message or 'the engine gave no reason'}"
            f"{history.describe_lasting(indices)}",
            hint="sync again before the next rollout",
        )
