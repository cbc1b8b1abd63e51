"""The trainer exports other weights than it loaded, or than its ranks hold.

## What it checks
- Before the first step, every tensor that the trainer exports has the bytes of the same tensor of SOURCE, cast to the trainer's
  dtype. ckptcheck reads a SOURCE that is a Megatron run with its own conversion. For each group of tensors that differ, the rule
  looks for the cause: layers exchanged, a tensor-parallel part that is lost or in another place, gate and up swapped, a rounding.
- A tensor of SOURCE that the trainer does not export, under this or another name, is a warning.
- After the load and after every step, each rank of the trainer digests its own parameters where they lie, without gathering them.
  The trainer's export has the same bytes in the rows or columns of this rank.
- If the engine's weights are wrong, the rule also compares the trainer's saved checkpoint with the export, because the cold load of
  the trial comes from that checkpoint.

## Why it matters
- The cold load of a trial comes from the trainer's own export, and so does every checkpoint of a job. A fault of the exporter is
  in both, so no comparison of a sync with a cold load shows it. The engine then samples from another model than the policy.
- The message names the weight, the rank that holds the part, and what the export has there instead: another rank's part, another
  layer, what the rank held at an earlier step, zeros, or nothing.

## How to fix
- Compare the exporter's map of names and its gathering over ranks with a known good one: `ckptcheck diff SOURCE EXPORT`.
- If the trainer's own logprobs are off too, its loader is at fault, not its exporter.
- Another rank's part, zeros or nothing: look at how the exporter gathers over ranks (the order of the group, its last member).
- Another layer or expert: look at how a pipeline or expert rank numbers what it holds over the whole model.
- An earlier step: the exporter reads a copy that the step does not update.

## When it can be wrong
- A trainer that changes weights when it loads them (it merges an adapter, ties the head, pads the vocabulary) exports others on
  purpose.
- If two parts of a weight hold equal bytes, the message may name the wrong one as the origin.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1329, NVIDIA-NeMo/Megatron-Bridge#5252, radixark/miles#1289, NVIDIA-NeMo/RL#3259 (half of the layers
under pipeline parallelism)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.export_comparison import SourceComparison, describe_misexport, group_misexported
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_part_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF037",
    "untrue-export",
    severity="error",
    on="refit",
    when=lambda trace: trace.source_comparison is not None or bool(trace.export_comparisons),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    yield from _compare_with_ranks(trace)
    if trace.source_comparison is not None:
        yield from _compare_with_source(trace, trace.source_comparison)


def _compare_with_source(trace: RefitTrace, comparison: SourceComparison) -> Iterator[Problem]:
    explained: set[str] = set()
    party = _name_party(trace)
    for verdict in comparison.verdicts:
        names = [name for name in verdict.tensors if name in comparison.differing]
        if names and "unknown" not in verdict.causes:
            explained.update(names)
            yield Problem(
                f"before any step, the trainer exports {count(len(names), 'other tensor')} than SOURCE has: {verdict.sentence}"
                + describe_part_origin(trace, names, names)
                + party,
                key=names[0],
                hint=f"look there, not in the sync; {verdict.evidence}",
                names=tuple(names),
            )
    if rest := [name for name in comparison.differing if name not in explained]:
        yield Problem(
            f"before any step, the trainer exports {count(len(rest), 'other tensor')} than SOURCE has: {join_truncated(rest)}"
            + describe_part_origin(trace, rest, rest)
            + party,
            key=rest[0],
            hint="look there, not in the sync",
            names=tuple(rest),
        )
    # what the engine drafts with may be sent beside the trainer's export
    if missing := [name for name in comparison.missing if name not in trace.sent_draft]:
        yield Problem(
            f"the trainer does not export {count(len(missing), 'tensor')} of SOURCE: {join_truncated(missing)}",
            key=missing[0],
            hint="see whether the engine needs it: a sync never writes it",
            severity="warning",
            names=tuple(missing),
        )
    if not comparison.compared and not comparison.differing:
        raise Skip(next(iter(comparison.skipped.values()), "the trainer exports nothing that SOURCE has"))


def _name_party(trace: RefitTrace) -> str:
    """Name the part of the trainer at fault: its exporter, if the export differs from what its ranks hold, else its loader."""
    first = next((each for each in trace.export_comparisons if not each.step), None)
    if first is None:
        return "; the trainer's loader or its exporter is at fault"
    return (
        "; the trainer's ranks hold other values than it exports: its exporter is at fault"
        if first.wrong
        else "; the trainer's ranks hold what it exports: its loader is at fault"
    )


def _compare_with_ranks(trace: RefitTrace) -> Iterator[Problem]:
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
