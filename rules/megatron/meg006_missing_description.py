"""metadata.json is missing or is no description of a checkpoint.

## What it checks
Beside `common.pt`, or a table of contents with objects that only megatron-core writes, lies `metadata.json`, a JSON object
that names the backend of the sharded files (`sharded_backend`): `torch_dist` where there is a `.metadata`.

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
from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.megatron.run import Megatron
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
            "it is missing, so Megatron takes the folder for a legacy checkpoint",
            file=file,
            hint="copy it from rank 0's node",
        )
    elif run.description is not None and not isinstance(run.description.get("sharded_backend"), str):
        yield Problem("it names no sharded_backend", file=file, hint="copy it from rank 0's node")
    elif (
        run.description is not None and run.contents is not None and run.description["sharded_backend"] != "torch_dist"
    ):
        yield Problem(
            f"it names the backend {clipped(run.description['sharded_backend'])!r}, and the files are those of torch_dist: "
            "Megatron looks for others",
            file=file,
            hint="copy it from rank 0's node",
        )
