"""Data files without a table of contents.

## What it checks
Beside `.distcp` files lies `.metadata`.

## Why it matters
`.metadata` is written last, by one rank: without it the save did not end, or the file stayed on another node. Neither
Megatron nor torch.distributed.checkpoint can load anything. Its name begins with a dot, so `cp *` and some uploads leave it
out.

## How to fix
Copy `.metadata` from the node of rank 0, or take an earlier iteration.

## When it can be wrong
A save that is under way looks the same. `--ignore MEG003` silences it.

## Seen in
huggingface/accelerate#3010, KempnerInstitute/KempnerForge#102
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count


@rule("MEG003", "missing-metadata", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    if run.contents is None and run.file(".metadata") not in run.files:
        files = [name for name in run.files if name.endswith(".distcp")]
        held = f", so nobody can tell what {count(len(files), 'data file holds', 'data files hold')}"
        yield Problem(
            "it is missing" + (held if files else ", and so is every data file"),
            file=run.file(".metadata"),
            hint="copy it from the node of rank 0 (its name begins with a dot), or take an earlier iteration",
        )
