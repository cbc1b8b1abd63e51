"""A quantized weight, or a companion of it, has another dtype or shape than its scheme requires.

## What it checks
The dtype and shape of every companion follow from the shape of the packed weight and from bits, group size, strategy and symmetry
in the config: as many columns of scales as there are groups, packed zero points on the right axis, GPTQ packed along the input and
AWQ along the output. The packed weight itself has rows and columns (and a dimension more for experts together), in NVFP4 and the
MX formats whole groups of them. If several numbers of columns pack into the same words, any of them is right.

## Why it matters
- vLLM and SGLang stop with a shape mismatch at best.
- If the product of the sizes is the same, groups get the scale of their neighbour, and only a benchmark shows it.
- A scale in a wrong dtype is cast. E8M0 exponents read as numbers are off by orders of magnitude.

## How to fix
Correct `group_size` (or `num_bits`, `block_structure`, `weight_block_size`) in the config if the weights are right. Otherwise
quantize again.

## When it can be wrong
- A loader of your own may cast a scale, or take it in another shape, on purpose. If it is the only consumer: `--ignore QNT003`.
- If the config declares several schemes and no consumer's matching decides which one a module has, a module is sound if it fits any
  of them. So the rule misses a mix-up of two schemes.
- It misses a wrong group size that gives the same number of groups.

## Seen in
vllm-project/vllm#50214 (group size 32 where 128 was declared), vllm-project/vllm#5915;
bitsandbytes 0.50.2 on a CPU: a model of 4 bits that is saved after it computed something has scales (`absmax`) in BF16 and in
another order, and loads with other weights
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import group_faults
from ckptcheck.text.formatting import format_shape


@rule(
    "QNT003",
    "companion-mismatch",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_headers()
    for group in group_faults(ckpt, "dtype", "shape"):
        if (weight := group.weight) is None:
            continue
        size = (
            f" for a weight stored as {format_shape(ckpt.tensors[weight].shape)}"
            if group.fault.kind == "shape" and group.key != weight
            else ""
        )
        yield Problem(
            f"its {group.fault.kind} {group.fault.text}, which {group.fault.scheme_key} requires{size}{group.others}",
            file=group.file,
            key=group.key,
            hint="correct the scheme in the config if the weights are right, else quantize again",
        )
