"""A scale is zero, subnormal, negative or not a number.

## What it checks
The scales of a quantized weight that is not zero itself are not all zero, nor an eighth of them in a row (or those of one
expert of a stack) where the weight is not, and not all below the smallest normal number of their dtype; a scale that stands
for a whole tensor is not negative; and no E8M0 exponent is 0xFF, which stands for NaN. NaN and Inf in scales that are stored
as floats are VAL001's and VAL002's.

## Why it matters
A zero scale turns the module into zero, and where engines divide by it (global scales, scales of inputs) into NaN. vLLM takes a
negative scale of a key-value cache for one that is missing, and the largest of several scales for all of them.

## How to fix
Quantize again; scales of activations come out as zero where no token of the calibration reached the module.

## When it can be wrong
Single zeros among scales of groups are sound (the group is zero) and not reported. An eighth of a matrix may be so much
smaller than the rest that its scales in E4M3 are zero; to engines it is zero then. On the Hub only scales that are zero
throughout are seen. Negative scales of groups are sound too:
symmetric schemes that use the whole range of integers write them.

## Seen in
vllm-project/vllm#54189, vllm-project/vllm#54444, vllm-project/vllm#45212
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.scales import SIGN, scales_of
from ckptcheck.checkpoint.quantization.stored import Part
from ckptcheck.phrase import count, few
from ckptcheck.values.stats import TensorStats
from ckptcheck.values.zero_scales import is_partly_zero

SMALLEST = {"F16": 2.0**-14, "BF16": 2.0**-126, "F32": 2.0**-126, "F8_E4M3": 2.0**-6}
"""The smallest normal number of a dtype."""
EXPONENTS = ("U8", "F8_E8M0")
TEXTS = {
    "zero": ("is", "are", "zero: the weight is lost, or the engine divides by it"),
    "partly": ("is", "are", "zero in part, where the weight is not: what it belongs to is lost"),
    "exponent": ("holds", "hold", "the exponent 0xFF, which is NaN"),
    "subnormal": ("is", "are", "subnormal: digits are lost, and kernels that flush such numbers compute with zero"),
    "negative": ("is", "are", "negative, which no engine expects of a scale for a whole tensor"),
}


@rule("QNT010", "broken-scale", severity="error", when=lambda ckpt: ckpt.quantization is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    values = ckpt.values.tensors
    broken: dict[tuple[str, str], list[str]] = {}
    for name, weight, part in scales_of(ckpt):
        stats = values.get(name)
        if stats is None:
            continue
        if stats.zero if part.dtype not in EXPONENTS else _is_zero(stats, part):
            whole = values.get(weight)
            if whole is None or not whole.zero:
                broken.setdefault((stats.shard, "zero"), []).append(name)
        elif part.dtype == "U8" and part.role.startswith("weight_scale") and stats.absmax == 255:
            broken.setdefault((stats.shard, "exponent"), []).append(name)
        elif 0 < stats.absmax < SMALLEST.get(part.dtype, 0):
            broken.setdefault((stats.shard, "subnormal"), []).append(name)
        elif prod(part.shape) == 1 and part.dtype in SIGN and _negative(ckpt, name):
            broken.setdefault((stats.shard, "negative"), []).append(name)
        elif not stats.constant and not stats.nan and is_partly_zero(ckpt, name, weight, part):
            broken.setdefault((stats.shard, "partly"), []).append(name)
    for (shard, kind), names in broken.items():
        one, many, text = TEXTS[kind]
        yield Problem(
            f"{count(len(names), f'scale {one}', f'scales {many}')} {text}: {few(names)}",
            file=shard,
            key=names[0],
            hint="quantize again",
        )
    ckpt.require_values()


def _is_zero(stats: TensorStats, part: Part) -> bool:
    """Whether all exponents are 0, which stands for 2^-127: what was never written."""
    return part.role.startswith("weight_scale") and stats.constant and stats.absmax in (0, 2.0**-127)


def _negative(ckpt: Checkpoint, name: str) -> bool:
    """Read the last byte of a single number, which holds its sign; on a hub that is not worth a request."""
    if ckpt.source.local is None:
        return False
    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]
    raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[1] - 1, 1)
    return bool(raw and raw[0] & 0x80 and not ckpt.values.tensors[name].zero)
