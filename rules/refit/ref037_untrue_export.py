"""The trainer exports other weights than it loaded.

## What it checks
- Before the first step, every tensor that the trainer exports has the bytes of the same tensor of SOURCE, cast to the
  trainer's dtype. ckptcheck reads a SOURCE that is a Megatron run with its own conversion.
- A tensor of SOURCE that the trainer does not export, under this or another name, is a warning.
- For each group of tensors that differ, the rule looks for the cause: layers exchanged, a tensor-parallel part that is lost or
  in another place, gate and up swapped, a rounding.

## Why it matters
- The cold load of a trial comes from the trainer's own export, and so does every checkpoint of a job. A fault of the exporter is
  in both, so no comparison of a sync with a cold load shows it. The engine then samples from another model than the policy.

## How to fix
- Compare the exporter's map of names and its gathering over ranks with a known good one: `ckptcheck diff SOURCE EXPORT`.
- If the trainer's own logprobs are off too, its loader is at fault, not its exporter.

## When it can be wrong
- A trainer that changes weights when it loads them (it merges an adapter, ties the head, pads the vocabulary) exports others on
  purpose.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1329, NVIDIA-NeMo/Megatron-Bridge#5252, radixark/miles#1289
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_part_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF037",
    "untrue-export",
    severity="error",
    on="refit",
    when=lambda trace: trace.source_comparison is not None,
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    comparison = trace.source_comparison
    assert comparison is not None
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
