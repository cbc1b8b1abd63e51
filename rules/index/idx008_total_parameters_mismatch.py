"""The index's total_parameters is far from what the shards hold.

## What it checks
`metadata.total_parameters` of the index is within 10 % of the elements that the shards' headers add up to. It is a
count of parameters, so buffers and tied weights make small differences legal. Quantized checkpoints pack several
parameters into one element and are left out.

## Why it matters
The Hub shows this number as the model's size, and tools choose hardware by it.

## How to fix
Save the index anew with the library that wrote it, or correct the number.

## When it can be wrong
A model that is packed without saying so in `config.json`, such as a GPTQ one with only `quantize_config.json`, has
fewer elements than parameters. An author may also have written the active parameters of a mixture of experts on
purpose. `--ignore IDX008` there. Within 10 % it is quiet, also when a layer of many is lost (CFG003 counts layers).

## Seen in
huggingface/huggingface_hub#4221 (a 7.6 B model that says 333,312)
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "IDX008",
    "total-parameters-mismatch",
    severity="warning",
    when=lambda ckpt: (
        ckpt.index_decides
        and "total_parameters" in ckpt.index.metadata
        and not (ckpt.config is not None and ckpt.config.quantized)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    ckpt.require_whole()
    declared = ckpt.index.metadata["total_parameters"]
    actual = sum(prod(tensor.shape) for tensor in ckpt.tensors.values())
    if type(declared) is int and abs(declared - actual) <= actual // 10:
        return
    said = f"{declared:,}" if type(declared) is int else repr(declared)
    yield Problem(
        f"total_parameters is {said}, but the tensors have {actual:,} elements",
        file=ckpt.index.file,
        key="metadata.total_parameters",
        hint="write the number of parameters the model has",
    )
