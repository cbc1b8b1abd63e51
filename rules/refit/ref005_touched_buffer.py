"""A buffer, or a tensor that the engine derives from its weights, is not what a cold load makes.

## What it checks
- After every sync, each buffer (for example the rotary cache or the scales of an FP8 KV cache) still exists and equals
  what a cold load of the same weights makes.
- A buffer that does not depend on the weights (the rotary cache) must not change at all. One that does (a calibrated
  scale) must follow the weights.
- The trial itself may change a buffer when it fills the parameters with marks before the first sync. The rule leaves
  such a buffer out, and it counts as skipped.
- Derived tensors are neither parameters nor buffers; the engine makes them from parameters after loading (packed
  copies, the fused matrices of MLA, sinks). After every sync, each exists and equals what a cold load makes.
- A copy that is packed for oneDNN cannot be read; only its address is known. The rule reports such a copy when it has
  the same address as before the step, the weights it is made of were sent with new values, every readable tensor is
  right, and the logprobs are off.

## Why it matters
- The engine computes most buffers once, at start, so no later sync repairs them.
- One wrong entry of a rotary cache moves logprobs by whole nats, and the engines' own checkers leave these names out.
- The engine computes with derived tensors, not with the parameters. Each parameter is right and every checker agrees,
  but the logprobs are those of the old weights.

## How to fix
- Find what writes to the buffer: a reset of all tensors, a sleep that drops buffers, or a loader that matches the end
  of a name.
- Scales of the KV cache: send `k_scale` and `v_scale` with every sync. An engine that processes its weights after the
  load sets scales that were not sent to 1.0.
- Derived tensors: use the update call that runs the engine's post-processing after loading, or run that processing
  yourself. If no call runs it, restart the engine.

## When it can be wrong
- Buffers that count something change by design.
- A scratch buffer that a kernel keeps as an attribute is not a weight.
- A new packed copy may get the address of the old one. If the logprobs are off for another reason, the rule names
  that copy too.

## Seen in
sgl-project/sglang (its checker skips cos_sin_cache), vllm-project/vllm#29341 (buffers lost by sleep),
NVIDIA-NeMo/RL#3225 (calibrated scales dropped to 1.0); sgl-project/sglang#29916, sgl-project/sglang#6265,
PrimeIntellect-ai/prime-rl#2438
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.observations import Key, Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import modified_buffers, stale_packed_copies
from ckptcheck.live.refit.weight_names import describe_origin, describe_ranks
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
    yield from _find_touched(trace, changed_by_scramble)
    yield from _find_stale(trace)
    if changed_by_scramble:
        names = sorted({name for _, name in changed_by_scramble})
        raise Skip(
            f"{count(len(names), 'buffer')} changed when the trial overwrote the parameters, before any sync:"
            f" {join_truncated(names)}"
        )


def _find_touched(trace: RefitTrace, changed_by_scramble: set[Key]) -> Iterator[Problem]:
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


def _find_stale(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        different_names = {name for (_, name), (entry, _) in sync.differing_tensors.items() if entry.kind == "derived"}
        missing_names = {
            key[1]
            for key, entry in sync.missing_tensors.items()
            if entry.kind == "derived" and key in trace.cold_manifest
        }
        stale_names = stale_packed_copies(trace, sync)
        for tensors, description in (
            (different_names, "is not what a cold load derives from the same weights"),
            (missing_names, "is missing, and a cold load derives it from the same weights"),
            (stale_names, "is still the copy that was packed before the step (it did not move), and logprobs are off"),
        ):
            if names := sorted(tensors):
                yield Problem(
                    f"after sync {sync.number}, {join_truncated(names)} {description}{describe_origin(trace, names)}",
                    key=names[0],
                    hint="have the engine process its weights after the load, as at start; until then restart it",
                    names=tuple(names),
                )
        if different_names or missing_names or stale_names:
            return
