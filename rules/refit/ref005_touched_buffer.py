"""A buffer of the engine changed, although the sync sent nothing for it.

## What it checks
- After every sync, each buffer (for example the rotary cache or the scales of the KV cache) still exists and equals
  what it was after the cold load.
- The trial itself may change a buffer when it fills the parameters with marks before the first sync. The rule leaves
  such a buffer out, and it counts as skipped.

## Why it matters
- The engine computes buffers once, at start, so no later sync repairs them.
- One wrong entry of a rotary cache moves logprobs by whole nats, and the engines' own checkers leave these names out.

## How to fix
- Find what writes to the buffer: a reset of all tensors, a sleep that drops buffers, or a loader that matches the end
  of a name.

## When it can be wrong
- Buffers that count something, or that the model recomputes from its weights, change by design.

## Seen in
sgl-project/sglang (its checker skips cos_sin_cache), vllm-project/vllm#29341 (buffers lost by sleep)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.trace_queries import modified_buffers
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF005",
    "touched-buffer",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    changed_by_scramble = modified_buffers(trace)
    for sync in trace.syncs:
        names = sorted({
            key[1]
            for key, cold in trace.cold_manifest.items()
            if cold.kind == "buffer"
            and sync.manifest
            and key not in changed_by_scramble
            and ((entry := sync.manifest.get(key)) is None or entry.digest != cold.digest)
        })  # fmt: skip
        if names:
            changed, pronoun = ("is not what it was", "it") if len(names) == 1 else ("are not what they were", "them")
            yield Problem(
                f"after sync {sync.number}, {join_truncated(names)} {changed} after the cold load, although nothing was sent"
                f" for {pronoun}",
                key=names[0],
                hint="find what writes to it; only a restart repairs it",
            )
            return
    if changed_by_scramble:
        names = sorted({name for _, name in changed_by_scramble})
        raise Skip(
            f"{count(len(names), 'buffer')} changed when the trial overwrote the parameters, before any sync:"
            f" {join_truncated(names)}"
        )
