"""What the engine derives from its weights was not made anew.

## What it checks
Tensors that are neither parameter nor buffer, and that an engine makes from parameters after loading (packed copies, the fused
matrices of MLA, sinks), are after every sync what a cold load makes.

## Why it matters
The engine computes with them, not with the parameters: each parameter is right, every checker agrees, and the logprobs are those of
the weights before.

## How to fix
Use the engine's update call that runs its processing after loading, or run it by hand; where none does, restart the engine.

## When it can be wrong
A scratch buffer that a kernel keeps as an attribute is no weight. Those that change between two cold loads are left out.

## Seen in
sgl-project/sglang#29916, sgl-project/sglang#6265, PrimeIntellect-ai/prime-rl#2438
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import few
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
        names = sorted({name for (_, name), (entry, _) in sync.differing.items() if entry.kind == "derived"})
        if names:
            yield Problem(
                f"after sync {sync.number} {few(names)} is not what a cold load derives from the same weights"
                + origin(trace, names),
                key=names[0],
                hint="have the engine process its weights after the load, as at start",
            )
            return
