"""`common.pt` is missing from a Megatron checkpoint.

## What it checks
Where `metadata.json`, or objects sharded over a grid of ranks, show that megatron-core wrote the checkpoint, the folder holds
`common.pt`.

## Why it matters
`common.pt` holds what is equal on all ranks: the iteration, the arguments, the state of the scheduler. Without it Megatron
stops with an AttributeError that does not name the file.

## How to fix
Copy it from the node of rank 0.

## When it can be wrong
It cannot: megatron-core always writes it. `--ignore MEG005` silences it.

## Seen in
NVIDIA/Megatron-LM#1530 (files that only the first node has)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import has_sharded_objects


@rule(
    "MEG005",
    "missing-common",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.form == "torch_dist"
        and (run.description is not None or (run.contents is not None and has_sharded_objects(run.contents.objects)))
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    if run.file("common.pt") not in run.files:
        yield Problem(
            "it is missing: Megatron finds neither the iteration nor the arguments",
            file=run.file("common.pt"),
            hint="copy it from the node of rank 0",
        )
