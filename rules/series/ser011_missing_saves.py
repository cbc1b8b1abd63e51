"""Saves are missing in the middle of a series.

## What it checks
- The steps between saves are the same, as far as most of them are. What is missing at the beginning is left out: trainers keep the
  last saves.
- Of few saves, that none is missing behind two that follow each other closely (100, 200, 400). Trainers that thin their saves
  out, or keep the best and the last ones, leave the gaps before those.

## Why it matters
- What happened in a gap is not known: a save that failed, or one that was removed. Nothing is compared within it.

## How to fix
- Nothing, if somebody removed them. Else look into the job's log at that step.

## When it can be wrong
- Saves were removed on purpose, the interval was changed or doubles, or the best few were kept: this is only information.

## Seen in
Saves that failed on one rank, and whose error no one read
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save_series import SaveSeries

MOST_NAMED = 3
LEAST = 3
"""Equal distances from which on there is a cadence."""
FEW = 3
"""Saves from which on one can be missing between them."""


@rule(
    "SER011",
    "missing-saves",
    severity="info",
    on="saves",
    when=lambda series: any(len(strand.saves) >= FEW for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        numbers = sorted({save.number for save in strand.saves})
        usual = find_cadence(numbers)
        if not usual:
            continue
        gaps = [
            range(earlier + usual, later, usual)
            for earlier, later in pairwise(numbers)
            if later - earlier > usual and (later - earlier) % usual == 0
        ]
        if gaps:
            missing = sum(map(len, gaps))
            first = [str(step) for gap in gaps for step in gap[:MOST_NAMED]][:MOST_NAMED]
            rest = f" and {missing - len(first):,} more" if missing > len(first) else ""
            yield Problem(
                f"{strand.name}: there is a save every {usual} {strand.unit}s, and none of {strand.unit}"
                f"{'' if missing == 1 else 's'} {', '.join(first)}{rest}",
                file=strand.name,
                hint="nothing, if it was removed; else look into the log of the job at that step",
            )


def find_cadence(numbers: list[int]) -> int:
    """Return how many steps lie between saves as a rule; 0 where that cannot be told."""
    distances = [later - earlier for earlier, later in pairwise(numbers)]
    usual, times = Counter(distances).most_common(1)[0] if distances else (0, 0)
    if times >= LEAST and 2 * times > len(distances):
        return usual
    shortest = min(distances, default=0)
    # one save is missing, and not before all that are close to each other
    is_one = sorted(distances)[1:] == [shortest] * (len(distances) - 2) + [2 * shortest]
    return shortest if len(distances) >= FEW - 1 and is_one and distances[0] == shortest else 0
