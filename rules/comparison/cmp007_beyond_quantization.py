"""A quantized weight does not stand for the dense one.

## What it checks
The numbers that a quantized weight stands for are compared with the dense ones. Rounding to the nearest number of the grid
errs by half a step, and what arithmetic in 16 bits adds; the step follows from bits and group. Where the quantized side is
the reference, the dense one has to be what it stands for, rounded once. Known are integers and fp8 of compressed-tensors,
packed or not, its MXFP4 and NVFP4, those of gpt-oss and ModelOpt, GPTQ, AWQ, DeepSeek's blocks and bitsandbytes; other formats
are reported as not compared (exit 2). Between uneven numbers (4-bit floats, nf4) the step is the gap in which the dense number
lies. Where a weight stands for another tensor of the checkpoint, gate for up or an expert for an expert, the message says so.

## Why it matters
A scale that belongs to another tensor, groups along the wrong axis or an exchanged weight load without a word.

## How to fix
Quantize again from the dense checkpoint. If the method moves weights on purpose (GPTQ, AWQ, SmoothQuant), see that the distance
is of the order of a step.

## When it can be wrong
GPTQ corrects later columns for the errors of earlier ones, and so leaves the nearest number: what is less than a step away in
the mean is CMP009's, a warning. Methods that scale weights (AWQ, SmoothQuant) or rotate them have other weights indeed.

## Seen in
vllm-project/vllm#5915, NVIDIA/Model-Optimizer#1807, unslothai/unsloth#6200
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.naming import together
from ckptcheck.comparison.stand_ins import told
from ckptcheck.phrase import count


@rule("CMP007", "beyond-quantization", severity="error", on="comparison")
def check(seen: Comparison) -> Iterator[Problem]:
    groups: dict[bool, list[str]] = {}
    worst: dict[bool, tuple[float, float, float]] = {}
    for pair, near, came_first in seen.findings.near:
        if near.is_wrong(came_first=came_first):
            groups.setdefault(came_first, []).append(pair.name)
            old = worst.get(came_first, (0.0, 0.0, 0.0))
            worst[came_first] = max(old[0], near.rms), max(old[1], near.steps), max(old[2], near.largest)
    for came_first, names in groups.items():
        rms, steps, largest = worst[came_first]
        what = (
            "the dense weight is not what the quantized one stands for"
            if came_first
            else "the quantized weight does not stand for the dense one"
        )
        others = {name: other for name, other in seen.stand_ins.items() if name in names}
        instead = f"; {count(len(others), 'stands', 'stand')} for another: {told(others)}" if others else ""
        yield Problem(
            f"{what} in {count(len(names), 'tensor', 'tensors')}: {together(names)}; {rms:.2g} steps of the grid apart in the "
            f"mean, {steps:.3g} at most ({largest:.3g}), where rounding explains 0.5{instead}",
            key=names[0],
            hint="quantize again from the dense checkpoint" if not came_first else "dequantise again",
        )
