"""`metadata.json` is missing or does not describe the checkpoint.

## What it checks
A folder with `common.pt`, or with objects that only megatron-core writes, holds `metadata.json`: a JSON object that names the
backend of the sharded files (`sharded_backend`), which is `torch_dist` if there is a `.metadata`.

## Why it matters
Megatron recognizes a distributed checkpoint by this file. Without it, Megatron treats the folder as a legacy checkpoint and
looks for files that do not exist.

## How to fix
Copy it from the node of rank 0. For torch_dist it is `{"sharded_backend": "torch_dist", "sharded_backend_version": 1}`.

## When it can be wrong
It cannot: Megatron loads no other. `--ignore MEG006` silences it.

## Seen in
NVIDIA/Megatron-LM#1530
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import has_sharded_objects


@rule(
    "MEG006",
    "missing-description",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.form == "torch_dist"
        and (
            run.file("common.pt") in run.files
            or (run.contents is not None and has_sharded_objects(run.contents.objects))
        )
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    file = run.file("metadata.json")
    if file not in run.files:
        yield Problem(
            "it is missing, so Megatron treats the folder as a legacy checkpoint",
            file=file,
            hint="copy it from the node of rank 0",
        )
    elif run.description is not None and not isinstance(run.description.get("sharded_backend"), str):
        yield Problem("it names no sharded_backend", file=file, hint="copy it from the node of rank 0")
    elif (
        run.description is not None and run.contents is not None and run.description["sharded_backend"] != "torch_dist"
    ):
        yield Problem(
            f"it names the backend {clip(run.description['sharded_backend'])!r}, but the files are those of torch_dist: "
            "Megatron looks for other files",
            file=file,
            hint="copy it from the node of rank 0",
        )
