"""A buffer of the engine is not the one that a cold load makes.

## What it checks
- After every sync, each buffer (for example the rotary cache or the scales of an FP8 KV cache) still exists and equals
  what a cold load of the same weights makes.
- A buffer that does not depend on the weights (the rotary cache) must not change at all. One that does (a calibrated
  scale) must follow the weights.
- The trial itself may change a buffer when it fills the parameters with marks before the first sync. The rule leaves
  such a buffer out, and it counts as skipped.

## Why it matters
- The engine computes most buffers once, at start, so no later sync repairs them.
- One wrong entry of a rotary cache moves logprobs by whole nats, and the engines' own checkers leave these names out.

## How to fix
- Find what writes to the buffer: a reset of all tensors, a sleep that drops buffers, or a loader that matches the end
  of a name.
- Scales of the KV cache: send `k_scale` and `v_scale` with every sync. An engine that processes its weights after the
  load sets scales that were not sent to 1.0.

## When it can be wrong
- Buffers that count something change by design.

## Seen in
sgl-project/sglang (its checker skips cos_sin_cache), vllm-project/vllm#29341 (buffers lost by sleep),
NVIDIA-NeMo/RL#3225 (calibrated scales dropped to 1.0)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.observations import Key, Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import modified_buffers
from ckptcheck.live.refit.weight_names import describe_ranks
from ckptcheck.live.runtime.engines.base import TensorDigests
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
        wrong = {key for key in _wrong_buffers(trace, sync) if key not in changed_by_scramble}
        # cold loads of two sets of weights differ in it: it depends on the weights
        dependent = {
            key for key in wrong if key in sync.reference and not _equals(sync.reference, key, trace.cold_manifest)
        }
        for keys in (wrong - dependent, dependent):
            if not keys:
                continue
            names = sorted({name for _, name in keys})
            changed, pronoun = ("is not what it was", "it") if len(names) == 1 else ("are not what they were", "them")
            description = f"{changed} after the cold load, although nothing was sent for {pronoun}"
            if keys is dependent:
                is_stale = all(_equals(sync.manifest, key, trace.cold_manifest) for key in keys)
                verb = "is" if len(names) == 1 else "are"
                description = f"{verb} not what a cold load makes of the same weights"
                description += (
                    f", but still what {'it was' if len(names) == 1 else 'they were'} at the start" * is_stale
                )
            yield Problem(
                f"after sync {sync.number}, {join_truncated(names)} {description}{describe_ranks(trace, keys)}",
                key=names[0],
                hint="send what it is made of with every sync, and have the engine process it"
                if keys is dependent
                else "find what writes to it; only a restart repairs it",
                names=tuple(names),
            )
        if wrong:
            return
    if changed_by_scramble:
        names = sorted({name for _, name in changed_by_scramble})
        raise Skip(
            f"{count(len(names), 'buffer')} changed when the trial overwrote the parameters, before any sync:"
            f" {join_truncated(names)}"
        )


def _wrong_buffers(trace: RefitTrace, sync: Sync) -> Iterator[Key]:
    """Yield the buffers that are not what a cold load of the same weights makes, or are gone."""
    for key, cold in trace.cold_manifest.items():
        expected = sync.reference.get(key, cold)
        if cold.kind == "buffer" and sync.manifest:
            entry = sync.manifest.get(key)
            if entry is None or entry.digest != expected.digest:
                yield key


def _equals(manifest: TensorDigests, key: Key, other: TensorDigests) -> bool:
    return key in manifest and manifest[key].digest == other[key].digest
