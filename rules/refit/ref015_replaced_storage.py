"""An update moved a parameter of the engine to another place in memory.

## What it checks
- After every sync, each parameter has the address it had after the cold load.

## Why it matters
- CUDA graphs keep the pointers from the time of their capture. They go on reading the old memory, which may be free
  or belong to another tensor by now. Eager execution is not affected.

## How to fix
- Copy into the parameter instead of replacing it, capture the graphs again, or run eager.

## When it can be wrong
- An engine that runs without graphs, for example on a CPU, is not affected.

## Seen in
vllm-project/vllm#48941, PrimeIntellect-ai/prime-rl#3543, sgl-project/sglang#27140
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF015",
    "replaced-storage",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        names = sorted({
            name
            for (rank, name), entry in sync.manifest.items()
            if entry.kind == "parameter"
            and (cold := trace.cold_manifest.get((rank, name))) is not None
            and cold.storage != entry.storage
        })  # fmt: skip
        if names:
            yield Problem(
                f"sync {sync.number} moved {count(len(names), 'parameter')} to another place in memory:"
                f" {join_truncated(names)}{describe_origin(trace, names)}{_name_mover(trace, sync, names)}",
                key=names[0],
                hint="CUDA graphs hold old pointers: capture them again, or run eager",
                names=tuple(names),
            )
            return


def _name_mover(trace: RefitTrace, sync: Sync, names: Sequence[str]) -> str:
    """Say whether the engine's loader put them there, where that was noted."""
    keys = [key for key in sync.manifest if key[1] in set(names)]
    if not all(key in sync.loaded for key in keys):
        return ""
    it = "it" if len(names) == 1 else "them"
    if all(sync.loaded[key].storage == sync.manifest[key].storage for key in keys):
        return f"; the engine's loader put {it} there"
    if all(sync.loaded[key].storage == trace.cold_manifest[key].storage for key in keys if key in trace.cold_manifest):
        return f"; what ran after the engine's load_weights put {it} there"
    return ""
