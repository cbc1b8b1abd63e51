"""A quantized weight is a quantization of the dense weight, but not by rounding to nearest.

## What it checks
The same comparison as CMP007, where the mean distance is less than one step of the grid: some numbers are farther from the
dense ones than rounding explains.

## Why it matters
Rounding to the nearest number would be closer. The scale may belong to another tensor, or the groups may be shifted by one.

## How to fix
Nothing, if the weights were calibrated. Otherwise quantize again. (Where smoothing scaled the columns, CMP007 says so.)

## When it can be wrong
GPTQ and similar methods choose other numbers on purpose. Their checkpoints have this warning on every weight.

## Seen in
vllm-project/llm-compressor#2939 (a calibration that went wrong: MMLU 82 → 25)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.text.formatting import count


@rule("CMP009", "not-the-nearest", severity="warning", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    scaled = comparison.value_differences.read_undivided
    distances = [
        (pair.name, distance)
        for pair, distance, came_first in comparison.value_differences.quantized
        if distance.beyond and not distance.is_different_weight and not came_first and pair.name not in scaled
    ]
    if distances:
        names = [name for name, _ in distances]
        beyond, elements = (
            sum(distance.beyond for _, distance in distances),
            sum(distance.elements for _, distance in distances),
        )
        yield Problem(
            f"{count(len(distances), 'quantized weight is', 'quantized weights are')} not rounded to the nearest numbers: "
            f"{group_names(names)}; {beyond:,} of {elements:,} numbers are farther than rounding explains, "
            f"{max(distance.steps for _, distance in distances):.3g} steps at most",
            key=names[0],
            names=tuple(names),
            hint="quantize again, unless the weights were calibrated (GPTQ)",
        )
