"""The table of contents names a file that is not there.

## What it checks
Every file that `.metadata` names lies beside it.

## Why it matters
Each rank writes files of its own. A node's local disk that was not gathered, or an upload that stopped, leaves some out;
the loader says so at the end of a long trace.

## How to fix
Copy the files of all ranks into one folder.

## When it can be wrong
A tool that reads only some tensors needs only their files. `--ignore MEG007` silences it.

## Seen in
huggingface/accelerate#3010, NVIDIA/Megatron-LM#1530
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few


@rule(
    "MEG007",
    "missing-data-file",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    keys: dict[str, list[str]] = {}
    for key, item in run.all_items():
        if run.path_of(item) not in run.files and not run.escapes(item.file):
            keys.setdefault(run.path_of(item), []).append(key)
    for file, lost in sorted(keys.items()):
        yield Problem(
            f"it does not exist, and {count(len(lost), 'chunk')} of the checkpoint should lie in it: {few(set(lost))}",
            file=file,
            hint="copy the files of all ranks into the folder",
        )
