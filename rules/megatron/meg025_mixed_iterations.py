"""The ranks of a legacy checkpoint are of different iterations.

## What it checks
Every rank's file names the same iteration.

## Why it matters
A model whose parts are of different ages: it loads, and answers almost sensibly.

## How to fix
Copy the files of one iteration; the others are named in the message.

## When it can be wrong
It cannot: one save writes one number. `--ignore MEG025` silences it.

## Seen in
KempnerInstitute/KempnerForge#102 (a save that did not end over an older one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import few


@rule("MEG025", "mixed-iterations", severity="error", on="megatron", when=lambda run: run.form == "legacy")
def check(run: Megatron) -> Iterator[Problem]:
    by_iteration: dict[int, list[str]] = {}
    for rank in run.ranks:
        if rank.iteration is not None:
            by_iteration.setdefault(rank.iteration, []).append(rank.folder.rpartition("/")[2])
    if len(by_iteration) > 1:
        said = "; ".join(f"{number} in {few(folders)}" for number, folders in sorted(by_iteration.items()))
        yield Problem(f"its ranks are of iterations {said}", file=run.place, hint="copy the files of one iteration")
