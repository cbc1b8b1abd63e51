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

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import FileRecord, Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.strand import Strand
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
        yield from _check_strand(strand)


def _check_strand(strand: Strand) -> Iterator[Problem]:
    first: dict[str, dict[str, Save]] = {}  # file → digest → the save that had it last
    rested: set[str] = set()
    whole: set[tuple[tuple[str, FileRecord], ...]] = set()
    for save in strand.digested:
        parts = tuple(sorted(save.parts.items(), key=lambda item: item[0]))
        known = {name: first[name].get(part.digest) for name, part in parts if name in first}
        others = sum(source is None for source in known.values())
        for name, source in known.items():
            if source is None or parts in whole:
                continue
            if others and name not in rested and len(first[name]) > 1:
                part = save.parts[name]
                yield Problem(
                    f"{save.name}: {name} holds the {count(part.tensors, 'tensor')} of {source.name}, bit for bit, while"
                    f" {count(others, 'other file')} moved",
                    file=f"{save.name}/{name}",
                    hint="this save mixes two steps: use another, or save again; look at the rank or the writer of this file",
                )
            else:
                rested.add(name)
        whole.add(parts)
        for name, part in parts:
            first.setdefault(name, {})[part.digest] = save
