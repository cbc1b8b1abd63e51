"""A scale is 10,000 times as large as in the sibling layers.

## What it checks
The largest scale of each weight is at most 10,000 times the median over the same weight in other layers and experts. E8M0 exponents
are compared as the powers of two that they encode. QNT030 reads the weights too, and reports scales that are ten times off.

## Why it matters
One flipped bit in the exponent of a scale multiplies every weight that it belongs to, and saturates the layer for every token. A
scale that was stored as its own reciprocal does the same.

## How to fix
Compare the file's hash with the original's. If another tool quantized one layer, quantize it again.

## When it can be wrong
Scales of inputs follow the largest activation of the calibration; a factor of 10,000 between layers is not known.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.values.detectors.roles import name_pattern

FACTOR = 10_000


@rule("QNT011", "absurd-scale", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    siblings: dict[str, list[tuple[str, float]]] = {}
    for name, _, part in iter_scales(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is not None and stats.absmax:
            largest = 2.0 ** (stats.absmax - 127) if part.dtype == "U8" else stats.absmax
            # 255 is NaN, which QNT010 reports.
            if not (part.dtype == "U8" and stats.absmax == 255):
                siblings.setdefault(name_pattern(name), []).append((name, largest))
    for members in siblings.values():
        typical = median(largest for _, largest in members)
        for name, largest in members if len(members) >= 3 else ():
            if largest > FACTOR * typical:
                yield Problem(
                    f"its largest scale is {largest:.3g}, where {typical:.3g} is typical of its sibling layers: "
                    "a flipped bit or a reciprocal",
                    file=ckpt.tensor_to_file[name],
                    key=name,
                    hint="compare the file's hash with the original's",
                )
    ckpt.require_values()
