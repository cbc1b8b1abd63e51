"""A scale is zero, subnormal, negative or NaN, or all scales are one number.

## What it checks
If a quantized weight is not zero itself, its scales are:
- not all zero, and none is zero over codes that are not: a block of FP8 or FP4 with a code that is not zero, a group of packed
  integers that differ. It reads scales of up to 16 KiB; of larger ones it looks at some hundred numbers, and at all numbers if one
  of these is zero or if 1,024 zero bytes follow each other;
- not all below the smallest normal number of their dtype;
- not negative, if one scale belongs to a whole tensor;
- not the E8M0 exponent 0xFF, which means NaN;
- not all the same number over eight quantized weights or more, for scales of one kind (a warning).

VAL001 reports NaN and Inf in scales that are stored as floats.

## Why it matters
A zero scale makes its block or module zero, and NaN where engines divide by it (global scales, scales of inputs). Scales of NVFP4
underflow where the scale above them was computed for much larger weights, such as those of all experts. vLLM takes a negative scale
of a key-value cache for a missing one, and uses the largest of several scales for all of them.

Scales follow the weights. They are all equal if a conversion allocated and never computed them, or cast the weights to FP8 without
scaling: small weights are then lost below the smallest number of the format.

## How to fix
Quantize again. Scales of activations are zero if no token of the calibration reached the module.

## When it can be wrong
- A zero among the scales of blocks is sound where the codes are zero, and not reported. So are negative scales of groups: symmetric
  schemes that use the whole range of integers write them.
- A block may be so much smaller than the rest that its E4M3 scale is zero. For engines it is zero then.
- Of more than 256 weights with zeros among their scales, the codes of 256 are read. Codes of 3 bits, and of groups that are out of
  order (`desc_act`), are not.
- On the Hub the rule finds only scales that are zero throughout.
- A cast to FP8 with a scale of one is legal, and some FP8 training keeps such weights.

## Seen in
vllm-project/vllm#54189, vllm-project/vllm#54444, vllm-project/vllm#45212, NVIDIA/Model-Optimizer#1382,
sgl-project/sglang#23625
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.scales import SIGN, iter_scales
from ckptcheck.checkpoint.quantization.storage import ModuleTensor
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.lost_blocks import LostBlocks, find_lost_blocks
from ckptcheck.values.stats import TensorStats

SMALLEST = {"F16": 2.0**-14, "BF16": 2.0**-126, "F32": 2.0**-126, "F8_E4M3": 2.0**-6}
"""The smallest normal number of a dtype."""
MIN_EQUAL = 8
"""Fewest weights whose equal scales are a finding: with fewer, as in a model of one layer, they may be chance."""
EXPONENTS = ("U8", "F8_E8M0")
TEXTS = {
    "zero": ("is", "are", "zero: the weight is lost, or the engine divides by it"),
    "exponent": ("holds", "hold", "the exponent 0xFF, which is NaN"),
    "subnormal": ("is", "are", "subnormal: digits are lost, and kernels that flush such numbers compute with zero"),
    "negative": ("is", "are", "negative, which no engine expects of a scale for a whole tensor"),
}


@rule("QNT010", "broken-scale", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    values = ckpt.values.tensors
    broken: dict[tuple[str, str], list[str]] = {}
    for name, weight, part in iter_scales(ckpt):
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
    told = {name for names in broken.values() for name in names}
    lost: dict[str, list[LostBlocks]] = {}
    for blocks in find_lost_blocks(ckpt):
        if blocks.name not in told:
            lost.setdefault(values[blocks.name].shard, []).append(blocks)
    for shard, scales in lost.items():
        number = sum(blocks.number for blocks in scales)
        yield Problem(
            f"{count(number, 'block scale is', 'block scales are')} 0 although their codes are not, in "
            f"{count(len(scales), 'tensor')}: engines compute these blocks as 0: "
            + join_truncated([blocks.name for blocks in scales]),
            file=shard,
            key=scales[0].name,
            hint="quantize again, with scales that are at least the smallest number of their dtype",
        )
    for (shard, kind), names in broken.items():
        one, many, text = TEXTS[kind]
        yield Problem(
            f"{count(len(names), f'scale {one}', f'scales {many}')} {text}: {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint="compare the file's hash with the original's; if it is the same, quantize again",
        )
    yield from _find_equal(ckpt)
    ckpt.require_values()


def _find_equal(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    """Yield the roles of which all scales are the same number."""
    kinds: dict[str, dict[str, float | None]] = {}
    for name, _, part in iter_scales(ckpt):
        if (stats := ckpt.values.tensors.get(name)) is not None:
            usable = (stats.constant or prod(part.shape) == 1) and not stats.zero and not stats.nan and not stats.inf
            kinds.setdefault(part.role, {})[name] = stats.absmax if usable else None
    for role, values in kinds.items():
        first, value = next(iter(values.items()))
        if len(values) >= MIN_EQUAL and value is not None and set(values.values()) == {value}:
            yield Problem(
                f"{count(len(values), 'tensor')} called {role} all hold the same number, {value:.6g}: they were never computed",
                file=ckpt.tensor_to_file[first],
                key=first,
                hint="quantize again, with scales computed from the weights",
                severity="warning",
                names=tuple(values),
            )


def _is_zero(stats: TensorStats, part: ModuleTensor) -> bool:
    """Whether all exponents are 0, which means 2^-127: the scale was never written."""
    return part.role.startswith("weight_scale") and stats.constant and stats.absmax in (0, 2.0**-127)


def _negative(ckpt: Checkpoint, name: str) -> bool:
    """Whether a single number is negative, by its last byte, which holds the sign; False on the Hub, to save a request."""
    if not ckpt.can_sample:
        return False
    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
    raw = ckpt.source.read(shard.name, shard.locate(name) + tensor.nbytes - 1, 1)
    return bool(raw and raw[0] & 0x80 and not ckpt.values.tensors[name].zero)
