"""A weight of torchao lacks a part that the file says it has, or has one that does not fit.

## What it checks
torchao stores a quantized weight as several tensors, and describes it in the `__metadata__` of the file.
- Every part that the description names is stored: `_weight_qdata`, `_weight_scale` and others.
- Where a number has an element of its own (Int8Tensor, IntxUnpackedToInt8Tensor, Float8Tensor), the numbers have a dtype of the
  class, and there is a scale and a zero point for each block.

## Why it matters
transformers 5.24 with torchao 0.18 puts the weight together from its parts. Where one is missing it stops in the middle of the
conversion, with a message that names neither the part nor the file; where one has another shape it stops there, or at the first
token.

## How to fix
Quantize again, or copy the tensor from the checkpoint that this one was made of.

## When it can be wrong
- What a class packs (Int4Tensor, NVFP4Tensor, MXTensor, …) is checked for its parts only.
- Zero points may have any dtype, and a weight without a description is not looked at.
- `--ignore QNT033`, or a reason under `[ignore]`, silences it.

## Seen in
Tensors removed from what torchao 0.18 writes through transformers 5.24
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.torchao_weights import list_torchao_faults, read_torchao_weights
from ckptcheck.text.formatting import count


@rule(
    "QNT033",
    "torchao-weight",
    severity="error",
    when=lambda ckpt: (
        not ckpt.is_partial and any("tensor_names" in (shard.metadata or ()) for shard in ckpt.shards.values())
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for name, shard in ckpt.shards.items():
        for weight in read_torchao_weights(shard.metadata or {}):
            for tensor, reason in list_torchao_faults(weight, ckpt.tensors):
                role = tensor.rpartition(".")[2]
                found.setdefault((weight.kind, role, reason), []).append(
                    (tensor, ckpt.tensor_to_file.get(tensor, name))
                )
    for (kind, _, reason), places in found.items():
        tensor, file = min(places)
        others = f", and so in {count(len(places) - 1, 'more weight')}" if len(places) > 1 else ""
        yield Problem(
            f"it {reason}{others}: torchao cannot put the {kind} together, and transformers stops",
            file=file,
            key=tensor,
            hint="quantize again, or copy the tensor from the checkpoint that this one was made of",
        )
    ckpt.require_headers()
