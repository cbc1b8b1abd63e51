"""`.metadata` or a link points outside the checkpoint.

## What it checks
No file that `.metadata` names, and no link in the folder, points outside the checkpoint. ckptcheck does not read such a file.

## Why it matters
A loader would read whatever the path names on its machine, and a copy of the checkpoint is incomplete.

## How to fix
Copy the files into the folder. Do not load a checkpoint whose paths you did not write.

## When it can be wrong
Runs may link old iterations from another disk: check the target of the link itself. `--ignore MEG034` silences it.

## Seen in
torch.distributed.checkpoint joins `relative_path` of `.metadata` to the folder as it stands (`FileSystemReader.read_data`); the
same in indexes of Hugging Face checkpoints (IDX010)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.megatron import Megatron


@rule("MEG034", "escaping-path", severity="error", on="megatron", when=lambda run: True)
def check(run: Megatron) -> Iterator[Problem]:
    named = {item.file for _, item in run.all_items()}
    for name in sorted(name for name in named if run.escapes(name)):
        yield Problem(
            f"it names the file {clip(name)}, which is outside the checkpoint",
            file=run.file(".metadata"),
            hint="do not load a checkpoint whose paths you did not write",
        )
    for name, file in run.files.items():
        if file.outside_link is not None:
            yield Problem(
                f"this is a link to {clip(file.outside_link)}, outside the checkpoint",
                file=name,
                hint="scan with --follow-links to check what it leads to, or copy the file here",
            )
    for name, target in run.outside_links.items():
        yield Problem(
            f"this is a link to {clip(target)}, outside the checkpoint",
            file=name,
            hint="scan with --follow-links, or check that folder instead",
        )
