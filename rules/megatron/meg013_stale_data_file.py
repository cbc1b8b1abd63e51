"""A data file that the table of contents does not name.

## What it checks
Every `.distcp` file is named by `.metadata`.

## Why it matters
A smaller number of ranks saved over a larger one: the checkpoint loads, and the old files stay, take space, and are
uploaded with it. Where the new save was meant to be the larger one, it is the table of contents that is stale.

## How to fix
Compare the times of the files; delete those of the earlier save.

## When it can be wrong
A save that is under way has files that no table names yet. `--ignore MEG013` silences it.

## Seen in
Two saves of different world sizes by megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few


@rule(
    "MEG013",
    "stale-data-file",
    severity="warning",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None and run.contents.readable,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    named = {run.path_of(item) for item in run.contents.items}
    inside = run.file("")
    stale = [name for name in run.files if name.endswith(".distcp") and name.startswith(inside) and name not in named]
    if stale:
        yield Problem(
            f"{count(len(stale), 'data file is', 'data files are')} named nowhere, as an earlier save of more ranks leaves them: "
            f"{few(stale)}",
            file=stale[0],
            hint="compare their times with .metadata's, and delete those of the earlier save",
        )
