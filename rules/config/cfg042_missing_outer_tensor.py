"""A tensor beside the layers, which transformers builds for this architecture, is missing.

## What it checks
In the causal language models of transformers: the last norm, a table of positions, and what else lies beside the layers whatever
the config switches on. Which tensors these are was learned from transformers, by building every architecture. CFG007 looks for the
output head, CFG009 for the token embedding, CFG020 into the layers.

## Why it matters
transformers fills the tensor anew: a norm with ones, a table with random numbers. A name that an exporter misspells loses it so,
and every call says success.

## How to fix
Export again, and check which name the exporter does not map.

## When it can be wrong
The model's own code under a known `model_type` may omit the tensor. A tensor of the same name anywhere else beside the layers
silences the rule. Unknown architectures are not checked.

## Seen in
No public report: edits of headers at random (`make false-clean`) showed that no rule saw it.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.layer_blocks import list_outer_tensors
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.weights_table import WeightsTable


@rule(
    "CFG042",
    "missing-outer-tensor",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and WeightsTable.of(ckpt.config) is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.components.stack
    if stack is None or ckpt.config is None or ckpt.components.is_draft:
        return
    stored = unquantized_names(ckpt.layout.outside)  # not of all: a large model has a hundred thousand
    ends = {".".join(name.split(".")[-2:]) for name in stored.intersection(ckpt.layout.outside)}
    for name in sorted(list_outer_tensors(ckpt.config, stack.prefix)):
        if name not in stored and name not in ckpt.tensors and ".".join(name.split(".")[-2:]) not in ends:
            yield Problem(
                f"there is no {name}, which transformers builds beside the layers of every {ckpt.config.architecture}",
                file=ckpt.config.file,
                key=name,
                hint="export again; until then transformers fills it with ones or random numbers",
            )
