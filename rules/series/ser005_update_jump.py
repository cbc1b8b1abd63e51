"""A tensor moved much further between two saves than ever before.

## What it checks
- The change of each matrix since the save before, relative to the matrix, is less than 0.3, or less than ten times its largest
  change so far and that of its kind. Two intervals before are needed. 0.3 is a third of the weight's own size; training moves
  weights by a thousandth, and another tensor in its place by 1.4.

## Why it matters
- A tensor that jumps alone was overwritten, initialised again, permuted, or loaded from another place. Where all jump, the save is
  of another run, or training diverged.

## How to fix
- `ckptcheck diff` between this save and the one before says what became of the tensor.

## When it can be wrong
- New weights were put in on purpose: a merge, an average, a reset of a layer. A run from random weights moves that far at its
  beginning; then its history is as large, and the rule is quiet.

## Seen in
Saves whose memory was reused while they were written, as in NVIDIA-NeMo/RL#3312
"""

from collections import Counter
from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.name_groups import group_names, name_template
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.strand import Strand, is_large_matrix
from ckptcheck.text.formatting import count

FAR = 0.3
"""A change of a third of a weight's own size."""
TIMES = 10.0
"""How much further than before."""


@rule(
    "SER005",
    "update-jump",
    severity="warning",
    on="saves",
    when=lambda series: any(len(strand.intervals) > 2 for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        yield from _check_strand(strand)


def _check_strand(strand: Strand) -> Iterator[Problem]:
    largest: dict[str, float] = {}
    times_moved: Counter[str] = Counter()
    of_kind: dict[tuple[str, ...], float] = {}
    foreign = {found.save.name for found in strand.foreign}
    for interval in strand.intervals:
        if {interval.before.name, interval.after.name} & foreign:
            continue  # SER012 says it
        matrices = {
            name: size for name, size in interval.updates.items() if is_large_matrix(interval.after.weights[name])
        }
        jumped = {
            name: size
            for name, size in matrices.items()
            if size >= FAR and times_moved[name] >= 2 and size > TIMES * of_kind[name_template(name)]
        }
        for name in matrices.keys() - jumped.keys():
            size, kind = matrices[name], name_template(name)
            largest[name] = max(size, largest.get(name, 0.0))
            of_kind[kind] = max(size, of_kind.get(kind, 0.0))
            times_moved[name] += size > 0
        if jumped and 2 * len(jumped) > len(matrices):
            yield Problem(
                f"{interval.after.name}: {len(jumped)} of {count(len(matrices), 'matrix', 'matrices')} moved by"
                f" {median(jumped.values()):.2g} of their size since {interval.before.name}, and by"
                f" {median(largest[name] for name in jumped):.2g} at most before: these are other weights",
                file=interval.after.name,
                hint="training diverged, or the save is of another run: ckptcheck diff says how both are related",
                names=tuple(sorted(jumped)),
            )
        elif jumped:
            worst = max(jumped, key=lambda name: jumped[name])
            yield Problem(
                f"{interval.after.name}: {count(len(jumped), 'matrix', 'matrices')} moved by up to {jumped[worst]:.2g} of"
                f" {'its' if len(jumped) == 1 else 'their'} size since {interval.before.name}, and by {largest[worst]:.2g}"
                f" at most before: {group_names(sorted(jumped))}",
                file=interval.after.name,
                key=worst,
                hint=f"ckptcheck diff {interval.before.address} {interval.after.address} says what became of them",
            )
