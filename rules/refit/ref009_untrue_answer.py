"""The update call said something else than what happened.

## What it checks
An update that reports success wrote everything; one that reports failure wrote nothing.

## Why it matters
Training code believes the answer. A success that was none goes unnoticed; a failure that was applied is sent again, or the step is
thrown away.

## How to fix
Compare digests, not answers; report it to the engine's authors.

## When it can be wrong
SGLang's answer to an update with `in_place` pauses (`--pause in_place`) is about its cache: the weights are written, and it says
False. Who reads it so is not hurt; who sends again, or gives up the step, is.

## Seen in
sgl-project/sglang#26032 (HTTP 200), SGLang 0.5.23 (`(True, 'Success')` for tensors that it dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF009",
    "untrue-answer",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        wrong = bool(sync.leftovers) or any(entry.kind == "parameter" for entry, _ in sync.differing.values())
        if sync.answer.ok and wrong:
            yield Problem(f"sync {sync.number} reported success, and the engine holds other weights than were sent")
        elif not sync.answer.ok and not wrong:
            yield Problem(f"sync {sync.number} reported failure ({sync.answer.message}), and all weights were written")
        elif not sync.answer.ok:
            yield Problem(f"sync {sync.number} failed: {sync.answer.message}")
        else:
            continue
        return
