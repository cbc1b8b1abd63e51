"""An update put a tensor of the engine elsewhere in memory.

## What it checks
Every parameter lies after a sync where it lay after the cold load.

## Why it matters
CUDA graphs hold pointers from the time they were captured. They go on with the old memory, which may be freed, or belong to
somebody else by now; with eager execution all is well.

## How to fix
Copy into the parameter instead of replacing it, capture the graphs anew, or run eager.

## When it can be wrong
An engine that runs without graphs, as on a CPU, is not hurt.

## Seen in
vllm-project/vllm#48941, PrimeIntellect-ai/prime-rl#3543, sgl-project/sglang#27140
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace


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
            if entry.kind == "parameter" and (old := trace.cold.get((rank, name))) is not None and old.place != entry.place
        })  # fmt: skip
        if names:
            yield Problem(
                f"sync {sync.number} put {count(len(names), 'parameter')} elsewhere in memory: {few(names)}{origin(trace, names)}",
                key=names[0],
                hint="CUDA graphs hold old pointers: capture them anew, or run eager",
            )
            return
