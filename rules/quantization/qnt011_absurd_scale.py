"""A scale is many thousand times as large as in the sibling layers.

## What it checks
The largest scale of each weight is compared with the median over the same weight in the other layers (and experts); 10,000 times
as large is absurd. E8M0 exponents are compared as the powers of two that they stand for. In FP8, where the largest number of
a weight is known, the largest weight of half of the modules stays below 10,000 once it is multiplied by its scale.

## Why it matters
One flipped bit in the exponent of a scale multiplies every weight it belongs to, and saturates the layer for every token. So does
a scale that was stored as its own reciprocal, of one weight or of all.

## How to fix
Compare the file's hash with the original's; where one layer was quantized by another tool, quantize it again.

## When it can be wrong
Scales of inputs follow the largest activation that the calibration saw; four orders of magnitude between layers have not been
seen. Nor has an FP8 model of which half of the weights reach 10,000.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.scales import SIGN, scales_of
from ckptcheck.values.roles import template

FACTOR = 10_000
LARGEST = 10_000.0


@rule("QNT011", "absurd-scale", severity="error", when=lambda ckpt: ckpt.quantization is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    siblings: dict[str, list[tuple[str, float]]] = {}
    for name, _, part in scales_of(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is not None and stats.absmax:
            largest = 2.0 ** (stats.absmax - 127) if part.dtype == "U8" else stats.absmax
            if not (part.dtype == "U8" and stats.absmax == 255):  # NaN, and said so elsewhere
                siblings.setdefault(template(name), []).append((name, largest))
    for alike in siblings.values():
        usual = median(largest for _, largest in alike)
        for name, largest in alike if len(alike) >= 3 else ():
            if largest > FACTOR * usual:
                yield Problem(
                    f"its largest scale is {largest:.3g}, in its sibling layers it is {usual:.3g}: a flipped bit, or a reciprocal",
                    file=ckpt.holders[name],
                    key=name,
                    hint="compare the file's hash with the original's",
                )
    yield from _reciprocal(ckpt)
    ckpt.require_values()


def _reciprocal(ckpt: Checkpoint) -> Iterator[Problem]:
    """Multiply the largest number of each FP8 weight by its largest scale: weights are below one, or a few tens at most."""
    found: dict[str, list[tuple[str, float]]] = {}
    for name, weight, part in scales_of(ckpt):
        scale, stats = ckpt.values.tensors.get(name), ckpt.values.tensors.get(weight)
        ours = part.role in ("weight_scale", "weight_scale_inv") and part.dtype in SIGN
        if ours and scale and stats and stats.dtype == "F8_E4M3":
            found.setdefault(part.role, []).append((name, stats.absmax * scale.absmax))
    for role, products in found.items():
        usual = median(product for _, product in products)
        if usual > LARGEST and len(products) >= 3:
            yield Problem(
                f"half of the {len(products):,} FP8 weights hold {usual:.3g} or more once multiplied by their {role}: "
                "the scales are reciprocals",
                file=ckpt.holders[products[0][0]],
                key=products[0][0],
                hint="store 1 / scale, the number that engines multiply by",
            )
