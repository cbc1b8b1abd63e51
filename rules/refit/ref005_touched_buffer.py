"""A buffer changed though nothing was sent for it.

## What it checks
Buffers such as the rotary cache and the scales of the cache are after every sync what they were after the cold load.

## Why it matters
No push repairs them: they are computed once, at start. One wrong entry of a rotary cache moves logprobs by nats, and the
built-in checkers of engines leave these names out.

## How to fix
Find what writes to it: a reset of all tensors, a sleep that drops buffers, a loader that matches by the end of a name.

## When it can be wrong
A buffer that counts, or that a model recomputes from weights, changes by design.

## Seen in
sgl-project/sglang (its checker skips cos_sin_cache), vllm-project/vllm#29341 (buffers lost by sleep)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import few
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF005",
    "touched-buffer",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        names = sorted({
            name
            for key, entry in sync.manifest.items()
            for name in (key[1],)
            if entry.kind == "buffer" and key in trace.cold and entry.digest != trace.cold[key].digest
        })  # fmt: skip
        if names:
            changed = "is not what it was" if len(names) == 1 else "are not what they were"
            sent = "it" if len(names) == 1 else "them"
            yield Problem(
                f"after sync {sync.number} {few(names)} {changed} after the cold load, and nothing was sent for {sent}",
                key=names[0],
                hint="find what writes to it; a restart is the only repair",
            )
            return
