"""A quantized weight stands for the dense one, but not by the nearest numbers of its grid.

## What it checks
What CMP007 does, where the distance is less than a step of the grid in the mean: some numbers are farther from the dense ones
than rounding explains.

## Why it matters
Rounding to the nearest would be closer. It may be a scale of another tensor that is nearly right, or groups shifted by one.

## How to fix
Nothing, if the weights were calibrated. Else quantize again.

## When it can be wrong
GPTQ and its kin leave the nearest number on purpose. A checkpoint that they made has this warning on every weight.

## Seen in
vllm-project/llm-compressor#2939 (a calibration that went wrong: MMLU 82 → 25)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.phrase import count


@rule("CMP009", "not-the-nearest", severity="warning", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    found = [
        (pair.name, near)
        for pair, near, came_first in seen.findings.near
        if near.beyond and not near.is_other and not came_first
    ]
    if found:
        names = [name for name, _ in found]
        beyond, elements = sum(near.beyond for _, near in found), sum(near.elements for _, near in found)
        yield Problem(
            f"{count(len(found), 'quantized weight is', 'quantized weights are')} not the nearest to the dense one: "
            f"{together(names)}; {beyond:,} of {elements:,} numbers are farther than rounding explains, "
            f"{max(near.steps for _, near in found):.3g} steps at most",
            key=names[0],
            hint="nothing, if they were calibrated (GPTQ); else quantize again",
        )
