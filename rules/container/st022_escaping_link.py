"""A file of the checkpoint is only a link to somewhere else.

## What it checks
No file is a symbolic link that leads out of the folder or to nothing. Links within the folder, and those of a
snapshot in the Hugging Face cache to its blobs, are followed.

## Why it matters
ckptcheck does not follow such a link, so that a checkpoint cannot make it read other files: what the link leads to
was not checked. A container that mounts the folder, `rsync -l`, `git` and an archive carry the link and not the file,
so the model that arrives has a hole. A link to nothing is one already, such as one into a cache that was cleaned.

## How to fix
Put the file itself into the folder: `cp --remove-destination "$(readlink -f FILE)" FILE`.

## When it can be wrong
On this machine loaders follow the link, so a folder that is put together from links, to save space, loads here. Scan
the folders that they lead to, and `--ignore ST022`; nothing vouches then for what is behind the links. Every file of
the folder counts, also one that no loader needs.

## Seen in
microsoft/onnxruntime#27353 and NVIDIA/TensorRT-Edge-LLM#184 (readers that refuse links out of the folder)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped


@rule("ST022", "escaping-link", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for name, file in ckpt.files.items():
        if file.leaves is not None:
            yield Problem(
                f"it is only a link, to {clipped(file.leaves, 300)}, and was not followed",
                file=name,
                hint="put the file itself in place of the link; what it leads to was not checked",
            )
