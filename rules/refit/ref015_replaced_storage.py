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

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.weight_names import describe_origin
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
                f" {join_truncated(names)}{describe_origin(trace, names)}",
                key=names[0],
                hint="CUDA graphs hold old pointers: capture them again, or run eager",
                names=tuple(names),
            )
            return
