"""A file of a save holds what it held in an earlier save, while the other files moved.

## What it checks
- Each file with tensors holds something new in every save, if it did in every save before and if other files do in this one. What
  counts are the bytes of the tensors, wherever they lie in the file: also the slices of one rank.

## Why it matters
- One rank or one writer wrote old memory, or its upload failed and the older object stayed. The save mixes two steps, its headers
  are sound, and every loader accepts it.

## How to fix
- Save again. Compare the save with the live trainer (`--history`), and look at the writer of this file: its rank, its thread.

## When it can be wrong
- All tensors in the file were frozen on purpose in the middle of the run: `--ignore SER004`.

## Seen in
NVIDIA-NeMo/RL#3312, NVIDIA/Megatron-LM#4378 (writers of asynchronous saves that copy stale memory)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.saves.save_series import SaveSeries
from ckptcheck.saves.strand import Strand
from ckptcheck.text.formatting import count


@rule(
    "SER004",
    "stale-file",
    severity="error",
    on="saves",
    when=lambda series: any(
        len(save.parts) > 1 for strand in series.strands if len(strand.digested) > 2 for save in strand.digested
    ),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        for place in range(2, len(strand.digested)):
            yield from _check_save(strand, place)


def _check_save(strand: Strand, place: int) -> Iterator[Problem]:
    save, earlier = strand.digested[place], strand.digested[:place]
    if any(save.parts == other.parts for other in earlier):
        return  # the whole save is repeated
    moved = [name for name, part in save.parts.items() if name in earlier[-1].parts and part != earlier[-1].parts[name]]
    for name, part in save.parts.items():
        others = [other for other in moved if other != name]
        held = [other.parts[name] for other in earlier if name in other.parts]
        if len(held) < 2 or not others or any(first == second for first, second in pairwise(held)) or part not in held:
            continue
        source = next(other for other in reversed(earlier) if other.parts.get(name) == part)
        yield Problem(
            f"{save.name}: {name} holds the {count(part.tensors, 'tensor')} of {source.name}, bit for bit, while"
            f" {count(len(others), 'other file')} moved",
            file=f"{save.name}/{name}",
            hint="save again: this save mixes two steps; look at the rank or the writer of this file",
        )
