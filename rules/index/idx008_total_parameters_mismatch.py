"""The index's total_parameters is far from what the shards hold.

## What it checks
`metadata.total_parameters` of the index is within 10 % of the elements that the shards' headers add up to. It counts
parameters, so buffers and tied weights cause small legal differences. Quantized checkpoints, which pack several parameters
into one element, are excluded.

## Why it matters
The Hub shows this number as the model's size, and tools choose hardware by it.

## How to fix
Save the index again with the library that wrote it, or correct the number.

## When it can be wrong
A model that is packed but does not say so in `config.json`, such as a GPTQ model with only `quantize_config.json`, has fewer
elements than parameters. An author may also write the active parameters of a mixture of experts on purpose. Use `--ignore
IDX008` in both cases. The rule is quiet within 10 %, even if one of many layers is lost (CFG003 counts layers).

## Seen in
huggingface/huggingface_hub#4221 (a 7.6 B model that says 333,312)
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint


@rule(
    "IDX008",
    "total-parameters-mismatch",
    severity="warning",
    on="index",
    when=lambda ckpt: (
        ckpt.index_decides
        and "total_parameters" in ckpt.index.metadata
        and not (ckpt.config is not None and ckpt.config.is_quantized)
    ),
)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
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
