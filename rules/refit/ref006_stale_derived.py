"""The engine did not rebuild a tensor that it derives from its weights.

## What it checks
- Derived tensors are neither parameters nor buffers; the engine makes them from parameters after loading (packed
  copies, the fused matrices of MLA, sinks).
- After every sync, each derived tensor exists and equals what a cold load makes.
- A copy that is packed for oneDNN cannot be read; only its address is known. The rule reports such a copy when it has
  the same address as before the step, the weights it is made of were sent with new values, every readable tensor is
  right, and the logprobs are off.

## Why it matters
- The engine computes with derived tensors, not with the parameters. Each parameter is right and every checker agrees,
  but the logprobs are those of the old weights.

## How to fix
- Use the update call that runs the engine's post-processing after loading, or run that processing yourself.
- If no call runs it, restart the engine.

## When it can be wrong
- A scratch buffer that a kernel keeps as an attribute is not a weight.
- A new packed copy may get the address of the old one. If the logprobs are off for another reason, the rule names
  that copy too.

## Seen in
sgl-project/sglang#29916, sgl-project/sglang#6265, PrimeIntellect-ai/prime-rl#2438
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import stale_packed_copies
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import join_truncated


@rule(
    "REF006",
    "stale-derived",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
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
