"""What the engine derives from its weights was not made anew.

## What it checks
Tensors that are neither parameter nor buffer, and that an engine makes from parameters after loading (packed copies, the fused
matrices of MLA, sinks), are after every sync there, and what a cold load makes. Of one that cannot be read (packed for oneDNN) the
place is known: where it lies as before a step, though what it is made of was sent with other numbers, and logprobs are off while
all that can be read is right, it is the packed copy of before.

## Why it matters
The engine computes with them, not with the parameters: each parameter is right, every checker agrees, and the logprobs are those of
the weights before.

## How to fix
Use the engine's update call that runs its processing after loading, or run it by hand; where none does, restart the engine.

## When it can be wrong
A scratch buffer that a kernel keeps as an attribute is no weight. A new packed copy may come to lie where the old one lay: where
logprobs are off for another reason, such a one is named too.

## Seen in
sgl-project/sglang#29916, sgl-project/sglang#6265, PrimeIntellect-ai/prime-rl#2438
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import few
from ckptcheck.refit.judging import kept_copies
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF006",
    "stale-derived",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        differ = {name for (_, name), (entry, _) in sync.differing.items() if entry.kind == "derived"}
        gone = {key[1] for key, entry in sync.gone.items() if entry.kind == "derived" and key in trace.cold}
        kept = kept_copies(trace, sync)
        for found, said in (
            (differ, "is not what a cold load derives from the same weights"),
            (gone, "is gone, which a cold load derives from the same weights"),
            (kept, "lies where it lay, packed from the weights of before the step, and logprobs are off"),
        ):
            if names := sorted(found):
                yield Problem(
                    f"after sync {sync.number} {few(names)} {said}{origin(trace, names)}",
                    key=names[0],
                    hint="have the engine process its weights after the load, as at start; until then restart it",
                )
        if differ or gone or kept:
            return
