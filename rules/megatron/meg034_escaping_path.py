"""The table of contents or a link leads out of the checkpoint.

## What it checks
No file that `.metadata` names, and no link in the folder, leads out of it. Such a file is not read.

## Why it matters
A loader would read whatever the path names on the machine that loads it, and a copy of the checkpoint is incomplete.

## How to fix
Copy the files into the folder; do not load a checkpoint whose paths you did not write.

## When it can be wrong
Runs that link old iterations from another disk. Check the goal of the link itself then. `--ignore MEG034` silences it.

## Seen in
The same defect in indexes of Hugging Face checkpoints (IDX009)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.megatron.run import Megatron


@rule("MEG034", "escaping-path", severity="error", on="megatron", when=lambda run: True)
def check(run: Megatron) -> Iterator[Problem]:
    named = {item.file for _, item in run.all_items()}
    for name in sorted(name for name in named if run.escapes(name)):
        yield Problem(
            f"it names the file {clipped(name)}, which leads out of the checkpoint",
            file=run.file(".metadata"),
            hint="do not load a checkpoint whose paths you did not write",
        )
    for name, file in run.files.items():
        if file.leaves is not None:
            yield Problem(
                f"this is a link to {clipped(file.leaves)}, outside the checkpoint",
                file=name,
                hint="copy the file here",
            )
    for name, goal in run.leaving.items():
        yield Problem(
            f"this is a link to {clipped(goal)}, outside the checkpoint", file=name, hint="name that folder instead"
        )
