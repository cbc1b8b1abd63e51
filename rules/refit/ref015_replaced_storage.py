"""An update moved a parameter of the engine in memory, or takes memory and does not give it back.

## What it checks
- After every sync, each parameter has the address it had after the cold load.
- From the first sync to the last, the engine's memory grows by at most 64 MB, or by an eighth of its weights per sync if that is
  more. The first sync does not count: it may set up what stays, such as buffers or a process group.

## Why it matters
- CUDA graphs keep the pointers from the time of their capture. They go on reading the old memory, which may be free
  or belong to another tensor by now. Eager execution is not affected.
- A job syncs thousands of times.

## How to fix
- Copy into the parameter instead of replacing it, capture the graphs again, or run eager.
- Find what keeps the buckets. On a GPU, empty the allocator's cache after the update.

## When it can be wrong
- An engine that runs without graphs, for example on a CPU, is not affected by new addresses.
- Few syncs show little: an allocator may keep memory once and never ask for more. `--steps 4` shows more.

## Seen in
vllm-project/vllm#48941, PrimeIntellect-ai/prime-rl#3543, sgl-project/sglang#27140; sgl-project/sglang#4446 (tensors of every update
stay under tensor parallelism), vllm-project/vllm#52950 (2 GiB for each packed transfer)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, format_bytes, join_truncated

ALWAYS = 64 << 20
"""Bytes that allocators keep or give back as they like."""


@rule(
    "REF015",
    "replaced-storage",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs) or len(trace.memory) > 2,
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    yield from _find_moved(trace)
    yield from _find_growth(trace)


def _find_moved(trace: RefitTrace) -> Iterator[Problem]:
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


def _find_growth(trace: RefitTrace) -> Iterator[Problem]:
    first, *later = trace.memory[1:] or (0,)
    weight_bytes = sum(entry.nbytes for entry in trace.cold_manifest.values())
    if later and (growth := later[-1] - first) > max(ALWAYS, len(later) * weight_bytes / 8):
        yield Problem(
            f"the engine's memory grew by {format_bytes(growth)} from the first sync to the last, over"
            f" {count(len(later), 'sync')} of {format_bytes(weight_bytes)}",
            hint="find what keeps the tensors of each update (a list of buckets, handles of shared memory); on a GPU, empty the"
            " allocator's cache after an update, which keeps what it no longer uses",
        )
