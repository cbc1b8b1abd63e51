"""A file of the checkpoint is a link that points outside.

## What it checks
No file is a symbolic link that points outside the folder or to nothing. Links within the folder, and those of a snapshot in
the Hugging Face cache to its blobs, are followed.

## Why it matters
ckptcheck does not follow such a link, so that a checkpoint cannot make it read other files: the target of the link is not
checked. A container that mounts the folder, `rsync -l`, `git` and archives copy the link and not the file, so the copy of the
model is incomplete. A link to nothing, for example into a cleaned cache, is already broken.

## How to fix
Put the file itself into the folder: `cp --remove-destination "$(readlink -f FILE)" FILE`.

## When it can be wrong
On this machine loaders follow the link, so a folder of links that saves space loads here. Scan the target folders, and use
`--ignore ST022`; ckptcheck then does not check the targets as part of this folder. Every file of the folder counts, even one
that no loader needs.

## Seen in
microsoft/onnxruntime#27353 and NVIDIA/TensorRT-Edge-LLM#184 (readers that refuse links out of the folder)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clip


@rule("ST022", "escaping-link", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for name, file in ckpt.files.items():
        if file.outside_link is not None:
            yield Problem(
                f"it is only a link, to {clip(file.outside_link, 300)}, and was not followed",
                file=name,
                hint="replace the link by the file itself; its target was not checked",
            )
