"""The sync did not write a tensor of the engine, or only a part of one.

## What it checks
- Before the first sync, the trial fills every parameter of the engine with marks. After it, no element of a parameter may still
  hold one.
- No element lies in memory that was allocated and never written.
- A table in the report lists the parameters that the trial could not mark.

## Why it matters
- The engine keeps the values it had before. In a training job those are the weights of the previous step.
- Nothing crashes and no call fails. The engine does not sample from the policy in training, and the KL grows from step
  to step.
- Engines fuse tensors that checkpoints keep apart. When k_proj is missing, vLLM leaves that part of qkv_proj to whatever was in
  memory, and still reports qkv_proj as loaded: a list of loaded names cannot show the fault.

## How to fix
- The message says whether what was sent arrived at the engine's `load_weights`: if not, the transport lost it.
- Send the tensor under the name that the engine's loader expects, and all parts of a fused tensor.
- Some loaders drop one half when a bucket boundary lies between the parts: use larger buckets, or update the engine.

## When it can be wrong
- A parameter that no checkpoint holds and that the engine fills itself at start keeps its marks. Please report it to us.
- Padding that no checkpoint fills and no kernel reads keeps its marks.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers under pipeline parallelism); sgl-project/sglang#38298 (halves that straddle a bucket),
vllm-project/vllm#50523
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.delivery import describe_arrival, describe_delivery, describe_stop
from ckptcheck.live.refit.observations import Key, Sync, is_draft
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import iter_unwritten_parts, why_not_scrambled
from ckptcheck.live.refit.weight_names import describe_origin, describe_ranks, weights_within
from ckptcheck.live.runtime.engines.base import UnwrittenElements
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF001",
    "unwritten-tensor",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync, unwritten in iter_unwritten_parts(trace):
        whole = {key for key, part in unwritten.items() if part.sentinel_count == part.total}
        if whole:
            yield _describe_unwritten(trace, sync, whole)
        partial = {
            key: part for key, part in unwritten.items() if key not in whole and (part.sentinel_count or part.nan_count)
        }
        yield from _describe_parts(trace, sync, partial)
    if reason := why_not_scrambled(trace):
        raise Skip(reason)


def _describe_unwritten(trace: RefitTrace, sync: Sync, whole: set[Key]) -> Problem:
    names = sorted({name for _, name in whole})
    subject = "the sync" if sync.number == 1 else f"sync {sync.number}, which sent the same values once more,"
    answer = "reported success" if sync.answer.ok else f"said: {sync.answer.message}"
    return Problem(
        f"{subject} did not write {count(len(names), 'tensor')}: {join_truncated(names)}; the update call {answer}"
        + describe_origin(trace, names)
        + (describe_ranks(trace, whole) or describe_delivery(trace, sync, names))
        + describe_arrival(trace, sync, whole, was_skipped=True),
        key=names[0],
        hint="send it, under a name that the engine's loader knows; if it was sent so, look at where the loader writes it",
        names=tuple(names),
    )


def _find_lost(trace: RefitTrace, sync: Sync, rank: int) -> set[str]:
    """Return the trainer's weights that lie in what a rank did not get, of tensors that it got in part or not at all."""
    lost: set[str] = set()
    for (other, name), part in sync.unwritten_parts.items():
        if other == rank and not is_draft(name):
            spans = [*part.sentinel_ranges, *part.nan_ranges]
            lost |= {weight.name for weight in weights_within(trace, name, spans, part.total)[0]}
    return lost


def _describe_parts(trace: RefitTrace, sync: Sync, partial: Mapping[Key, UnwrittenElements]) -> Iterator[Problem]:
    """Yield a problem for each set of tensors that ranks did not get whole; each tensor once."""
    reported: set[str] = set()
    subject = "" if sync.number == 1 else f"in sync {sync.number}, which sent the same values once more, "
    for rank in sorted({rank for rank, _ in partial}):
        names = sorted({name for other, name in partial if other == rank} - reported)
        # every tensor of this rank was reported with an earlier rank
        if not names:
            continue
        reported.update(names)
        first = partial[rank, names[0]]
        unwritten = first.sentinel_count + first.nan_count
        spans = [*first.sentinel_ranges, *first.nan_ranges]
        ranges = ", ".join(f"{begin:,} to {end - 1:,}" for begin, end in spans[:3])
        message = f"{subject}{unwritten:,} of {first.total:,} elements were not written ({ranges})"
        message += describe_origin(trace, names[:1], spans, first.total)
        if len(names) > 1:
            message += f"; and parts of {count(len(names) - 1, 'other tensor')}: {join_truncated(names[1:])}"
        first_keys = [key for key in partial if key[1] == names[0]]
        message += describe_ranks(trace, first_keys, always=True)
        lacking, _ = weights_within(trace, names[0], spans, first.total)
        message += describe_stop(sync, _find_lost(trace, sync, rank))
        message += describe_arrival(trace, sync, first_keys, [weight.name for weight in lacking], was_skipped=True)
        yield Problem(
            message,
            key=names[0],
            hint="send every part of what the engine fuses, in one update; if all were sent, look for what was lost under way",
            names=tuple(names),
        )
