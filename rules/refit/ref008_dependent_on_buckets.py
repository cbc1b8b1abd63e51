"""The same weights, sent in other buckets, left other weights.

## What it checks
The weights of a step are sent twice, in buckets of two sizes, and the engine holds the same after both. vLLM's `reload_weights` and
SGLang's update from disk read all buckets as one stream: their sizes are nothing to them. There only what changes from one sync to
the next shows, and the rule is otherwise skipped. `gloo`, `nccl`, `ipc`, `load_weights`, `tensor` and `flattened_bucket` make one
call a bucket.

## Why it matters
Loaders that keep state between calls drop what straddles two buckets. It works in a test with one bucket, and not in the job.

## How to fix
Keep what the engine fuses in one bucket, or update the engine.

## When it can be wrong
If the weights differ from a cold load both times, look there first.

## Seen in
sgl-project/sglang#38298, sgl-project/sglang#14178
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import few, size
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF008",
    "dependent-on-buckets",
    severity="error",
    on="refit",
    when=lambda trace: len(trace.syncs) > 2 and bool(trace.syncs[1].manifest),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for one, other in zip(trace.syncs[1:], trace.syncs[2:], strict=False):
        if one.step != other.step:
            continue
        names = sorted({
            name for (rank, name), entry in one.manifest.items() if entry.digest != other.manifest[rank, name].digest
        })  # fmt: skip
        if names:
            sizes = f" in buckets of {size(one.bucket_bytes)} and {size(other.bucket_bytes)}"
            yield Problem(
                f"syncs {one.number} and {other.number} sent the same weights{'' if trace.streamed else sizes}, and left different"
                f" ones: {few(names)}{origin(trace, names)}",
                key=names[0],
                hint="see the findings about weights" if trace.streamed else "keep what the engine fuses in one bucket",
            )
            return
    if trace.streamed:
        raise Skip(f"{trace.streamed} reads all buckets as one stream, so their sizes make no difference")
