"""A companion of a quantized weight has another dtype or shape than its scheme gives it.

## What it checks
The dtype and the shape of every companion follow from the shape of the packed weight and from bits, group size, strategy and
symmetry in the config: as many columns of scales as there are groups, packed zero points on the right axis, GPTQ packed along
the input and AWQ along the output. Where several numbers of columns pack into the same words, each of them will do.

## Why it matters
vLLM and SGLang stop with a shape mismatch at best. Where the numbers multiply alike, groups are scaled by their neighbour's
scale, which nobody sees but the benchmark. A scale in a wrong dtype is cast, and E8M0 exponents read as numbers are off by
orders of magnitude.

## How to fix
Correct `group_size` (or `num_bits`, `block_structure`, `weight_block_size`) in the config if the weights are right, else
quantize again.

## When it can be wrong
A loader of your own may cast a scale, or take it in another shape, on purpose: `--ignore QNT003` if it is the only
consumer. Where the config declares several schemes and no consumer's matching tells which one a module has, a module
passes if it fits any of them, so a slip between two schemes is not seen. Nor is a group size whose number of groups
comes out the same.

## Seen in
vllm-project/vllm#50214 (group size 32 where 128 was declared), vllm-project/vllm#5915
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.told import told
from ckptcheck.phrase import shape


@rule(
    "QNT003",
    "companion-mismatch",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_headers()
    for found in told(ckpt, "dtype", "shape"):
        scheme, weight = found.fault.scheme, found.weight
        assert scheme is not None
        assert weight is not None
        size = f" for a weight stored as {shape(ckpt.tensors[weight].shape)}" if found.fault.kind == "shape" else ""
        yield Problem(
            f"its {found.fault.kind} {found.fault.text}, as {scheme.key} needs it{size}{found.others}",
            file=found.file,
            key=found.key,
            hint="correct the scheme in the config if the weights are right, else quantize again",
        )
