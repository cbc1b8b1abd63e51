"""A data file that `.metadata` names is missing.

## What it checks
Every file that `.metadata` names lies beside it.

## Why it matters
Each rank writes its own files. A node's local disk that was not gathered, or an upload that stopped, omits some. The loader
reports that only at the end of a long trace.

## How to fix
Copy the files of all ranks into one folder.

## When it can be wrong
A tool that reads only some tensors needs only their files. `--ignore MEG007` silences it.

## Seen in
huggingface/accelerate#3010, NVIDIA/Megatron-LM#1530
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.views import DcpCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "MEG007",
    "missing-data-file",
    severity="error",
    on="dcp",
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    keys: dict[str, list[str]] = {}
    for key, item in run.all_items():
        if run.path_of(item) not in run.files and not run.escapes(item.file):
            keys.setdefault(run.path_of(item), []).append(key)
    for file, missing in sorted(keys.items()):
        yield Problem(
            f"the file is missing; it should hold {count(len(missing), 'chunk')}: {join_truncated(set(missing))}",
            file=file,
            hint="copy the files of all ranks into the folder",
        )
