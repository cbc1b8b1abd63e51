"""The trainer exports other weights than its ranks hold.

## What it checks
- After the load and after every step, each rank of the trainer digests its own parameters where they lie, without gathering them.
  The trainer's export has the same bytes in the rows or columns of this rank.
- If the engine's weights are wrong, the rule also compares the trainer's saved checkpoint with the export, because the cold load
  of the trial comes from that checkpoint.

## Why it matters
- The cold load comes from the same exporter as the sync. A fault of the exporter is in both, so the engine equals the cold load
  and still is not the policy in training. Checkpoints of the job have the same fault.
- The message names the weight, the rank that holds the part, and what the export has there instead: another rank's part, another
  layer, what the rank held at an earlier step, zeros, or nothing.

## How to fix
- Another rank's part, zeros or nothing: look at how the exporter gathers over ranks (the order of the group, its last member).
- Another layer or expert: look at how a pipeline or expert rank numbers what it holds over the whole model.
- An earlier step: the exporter reads a copy that the step does not update.

## When it can be wrong
- If two parts of a weight hold equal bytes, the message may name the wrong one as the origin.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1329, NVIDIA-NeMo/RL#3259 (half of the layers under pipeline parallelism), radixark/miles#1289
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.export_comparison import describe_misexport, group_misexported
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import count, join_truncated


@rule("REF042", "misgathered-export", severity="error", on="refit", when=lambda trace: bool(trace.export_comparisons))
def check(trace: RefitTrace) -> Iterator[Problem]:
    layout = trace.trainer.layout if trace.trainer is not None else ""
    reported: set[str] = set()
    saved: set[str] = set()
    for comparison in trace.export_comparisons:
        moment = f"after step {comparison.step}" if comparison.step else "before any step"
        new = [part for part in comparison.wrong if part.shard.name not in reported]
        reported |= {part.shard.name for part in new}
        for parts in group_misexported(new):
            names = sorted({part.shard.name for part in parts})
            yield Problem(
                f"{moment}, the trainer's export of {count(len(names), 'weight')} differs from what its ranks hold:"
                f" {describe_misexport(parts, layout)}",
                key=names[0],
                hint="find it in the trainer's exporter, not in the sync or the engine",
                names=tuple(names),
            )
        if others := sorted(set(comparison.saved_differently) - saved):
            saved.update(others)
            yield Problem(
                f"{moment}, the checkpoint that the trainer saves has other values than it exports in"
                f" {count(len(others), 'weight')}: {join_truncated(others)}; the cold load comes from that checkpoint",
                key=others[0],
                hint="find it in how the trainer writes files: its ranks and its export are right"
                if not reported.intersection(others)
                else "find it in the trainer's exporter, not in the sync or the engine",
                names=tuple(others),
            )
