"""metadata.json is missing or is no description of a checkpoint.

## What it checks
Beside `common.pt` lies `metadata.json`, a JSON object that names the backend of the sharded files (`sharded_backend`).

## Why it matters
Megatron tells a distributed checkpoint by this file. Without it the folder is taken for a legacy checkpoint, whose files
then do not exist.

## How to fix
Copy it from the node of rank 0. For torch_dist it is `{"sharded_backend": "torch_dist", "sharded_backend_version": 1}`.

## When it can be wrong
It cannot: Megatron loads no other. `--ignore MEG006` silences it.

## Seen in
NVIDIA/Megatron-LM#1530
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron


@rule(
    "MEG006",
    "missing-description",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.file("common.pt") in run.files,
)
def check(run: Megatron) -> Iterator[Problem]:
    file = run.file("metadata.json")
    if file not in run.files:
        yield Problem(
            "it is missing, so Megatron takes the folder for a legacy checkpoint",
            file=file,
            hint="copy it from rank 0's node",
        )
    elif run.description is not None and not isinstance(run.description.get("sharded_backend"), str):
        yield Problem("it names no sharded_backend", file=file, hint="copy it from rank 0's node")
