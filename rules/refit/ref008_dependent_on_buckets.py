"""Sending the same weights in buckets of another size left other weights in the engine.

## What it checks
- The trial sends the weights of one step twice, in buckets of two sizes. The engine holds the same after both syncs.
- `gloo`, `nccl`, `ipc`, `load_weights`, `tensor` and `flattened_bucket` make one call per bucket.
- vLLM's `reload_weights` and SGLang's update from disk read all buckets as one stream, so bucket sizes cannot matter.
  With them, only a difference between two equal syncs shows; without such a difference the rule is skipped.

## Why it matters
- Loaders that keep state between calls drop tensors that straddle two buckets. The update works in a test with one
  bucket and fails in the job.

## How to fix
- Put everything that the engine fuses into one bucket, or update the engine.

## When it can be wrong
- If the weights differ from a cold load after both syncs, look at those findings first.

## Seen in
sgl-project/sglang#38298, sgl-project/sglang#14178
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.observations import is_draft
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import stale_parameters
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import format_bytes, join_truncated


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
        # REF003 reports a tensor that exists after one of the two syncs only. One that still has the values of an earlier step
        # (REF004), and one that kept its marks, say nothing about buckets.
        skipped = stale_parameters(trace, one) & {
            key for key, part in other.unwritten_parts.items() if part.sentinel_count == part.total
        }
        names = sorted({
            key[1]
            for key, entry in one.manifest.items()
            if key in other.manifest and key not in skipped and not is_draft(key[1]) and entry.digest != other.manifest[key].digest
        })  # fmt: skip
        if names:
            sizes = f" in buckets of {format_bytes(one.bucket_bytes)} and {format_bytes(other.bucket_bytes)}"
            yield Problem(
                f"syncs {one.number} and {other.number} sent the same weights{'' if trace.stream_transport else sizes}, but"
                f" left different ones in the engine: {join_truncated(names)}{describe_origin(trace, names)}",
                key=names[0],
                hint="see the findings about weights"
                if trace.stream_transport
                else "keep what the engine fuses in one bucket; if it is, look at how buckets are cut and reused",
                names=tuple(names),
            )
            return
    if trace.stream_transport:
        raise Skip(f"{trace.stream_transport} reads all buckets as one stream, so their sizes make no difference")
