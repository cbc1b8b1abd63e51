"""A scale is 10,000 times as large as in the sibling layers, or all FP8 scales are reciprocals.

## What it checks
- The largest scale of each weight is at most 10,000 times the median over the same weight in other layers and experts. E8M0
  exponents are compared as the powers of two that they encode.
- In FP8, where the largest number of a weight is known, the largest weight of half of the modules stays below 10,000 after
  multiplication by its scale.

## Why it matters
One flipped bit in the exponent of a scale multiplies every weight that it belongs to, and saturates the layer for every token. A
scale that was stored as its own reciprocal, of one weight or of all, does the same.

## How to fix
Compare the file's hash with the original's. If another tool quantized one layer, quantize it again.

## When it can be wrong
- Scales of inputs follow the largest activation of the calibration; a factor of 10,000 between layers is not known.
- No FP8 model is known in which half of the weights reach 10,000.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.scales import SIGN, iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.values.detectors.roles import name_pattern

FACTOR = 10_000
MAX_WEIGHT = 10_000.0


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
    yield from _reciprocal(ckpt)
    ckpt.require_values()


def _reciprocal(ckpt: Checkpoint) -> Iterator[Problem]:
    """Multiply the largest number of each FP8 weight by its largest scale. Weights are below one, or a few tens at most."""
    products_by_role: dict[str, list[tuple[str, float]]] = {}
    for name, weight, part in iter_scales(ckpt):
        scale, stats = ckpt.values.tensors.get(name), ckpt.values.tensors.get(weight)
        ours = part.role in ("weight_scale", "weight_scale_inv") and part.dtype in SIGN
        if ours and scale and stats and stats.dtype == "F8_E4M3":
            products_by_role.setdefault(part.role, []).append((name, stats.absmax * scale.absmax))
    for role, products in products_by_role.items():
        usual = median(product for _, product in products)
        if usual > MAX_WEIGHT and len(products) >= 3:
            yield Problem(
                f"half of the {len(products):,} FP8 weights reach {usual:.3g} or more after multiplication by their {role}: "
                "the scales are reciprocals",
                file=ckpt.tensor_to_file[products[0][0]],
                key=products[0][0],
                hint="store 1 / scale, the number that engines multiply by",
            )
