"""`.metadata` does not name a data file.

## What it checks
`.metadata` names every `.distcp` file of the folder.

## Why it matters
Fewer ranks saved over a save of more ranks: the checkpoint loads, but the old files remain, take space, and are uploaded with
it. If the save of more ranks is the new one, `.metadata` is the old file.

## How to fix
Compare the times of the files, and delete those of the earlier save.

## When it can be wrong
A save in progress has files that no `.metadata` names yet. `--ignore MEG013` silences it.

## Seen in
Two saves of different world sizes by megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import DcpCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "MEG013",
    "stale-data-file",
    severity="warning",
    on="dcp",
    when=lambda run: run.contents.readable,
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    named_files = {run.path_of(item) for item in run.contents.items}
    folder = run.file("")
    stale = [
        name for name in run.files if name.endswith(".distcp") and name.startswith(folder) and name not in named_files
    ]
    if stale:
        yield Problem(
            f".metadata does not name {count(len(stale), 'data file')}; an earlier save of more ranks leaves such files: "
            f"{join_truncated(stale)}",
            file=stale[0],
            hint="compare their times with .metadata's, and delete those of the earlier save",
        )
