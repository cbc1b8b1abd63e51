"""`.metadata` is missing beside the data files.

## What it checks
A folder with `.distcp` files also holds `.metadata`, the table of contents.

## Why it matters
One rank writes `.metadata` last: without it, the save did not finish, or the file stayed on another node. Neither Megatron
nor torch.distributed.checkpoint can load anything. The name begins with a dot, so `cp *` and some uploads omit it.

## How to fix
Copy `.metadata` from the node of rank 0, or use an earlier iteration.

## When it can be wrong
A save in progress looks the same. `--ignore MEG003` silences it.

## Seen in
huggingface/accelerate#3010, KempnerInstitute/KempnerForge#102
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import count


@rule("MEG003", "missing-metadata", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    if run.contents is None and run.file(".metadata") not in run.files:
        files = [name for name in run.files if name.endswith(".distcp")]
        consequence = f", so no loader can find the tensors in {count(len(files), 'data file')}"
        yield Problem(
            "it is missing" + (consequence if files else ", and so is every data file"),
            file=run.file(".metadata"),
            hint="copy it from the node of rank 0 (its name begins with a dot), or use an earlier iteration",
        )
