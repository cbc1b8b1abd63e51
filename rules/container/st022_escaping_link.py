"""A file of the checkpoint is a link that points outside.

## What it checks
No file is a symbolic link that points outside the folder, to nothing, or to a pipe or device. Links within the folder, and those
of a snapshot in the Hugging Face cache to its blobs, are followed. With `--follow-links` every link to a regular file is, and only
those that lead to none are found here.

## Why it matters
ckptcheck does not follow such a link by itself, so that a checkpoint cannot make it read other files: the target of the link is
not checked. A container that mounts the folder, `rsync -l`, `git` and archives copy the link and not the file, so the copy of the
model is incomplete. A link to nothing, for example into a cleaned cache, is already broken.

## How to fix
Put the file itself into the folder: `cp --remove-destination "$(readlink -f FILE)" FILE`.

## When it can be wrong
On this machine loaders follow the link, so a folder of links that saves space loads here: `--follow-links` checks it as loaders
read it. Every file of the folder counts, even one that no loader needs.

## Seen in
microsoft/onnxruntime#27353 and NVIDIA/TensorRT-Edge-LLM#184 (readers that refuse links out of the folder)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clip
from ckptcheck.text.formatting import join_truncated

MOST_LISTED = 2
"""Links that are findings of their own; more of them are a folder of links, which is one."""


@rule("ST022", "escaping-link", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    links = {name: file.outside_link for name, file in ckpt.files.items() if file.outside_link is not None}
    if ckpt.options.follow_links or len(links) <= MOST_LISTED:
        for name, goal in links.items():
            hint = "replace the link by the file itself"
            if not ckpt.options.follow_links:
                hint = (
                    "ckptcheck scan --follow-links checks what it leads to; a copy of the folder needs the file itself"
                )
            yield Problem(f"it is only a link, to {clip(goal, 300)}, and was not followed", file=name, hint=hint)
        return
    name, goal = next(iter(links.items()))
    yield Problem(
        f"{len(links)} files are only links, and were not followed: {join_truncated(links)}; this one leads to {clip(goal, 300)}",
        file=name,
        hint="ckptcheck scan --follow-links checks what they lead to; a copy of the folder needs the files themselves",
    )
