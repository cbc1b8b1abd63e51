"""A quantized weight does not hold the values of the dense one.

## What it checks
- The dequantized numbers are compared with the dense ones. Rounding to the nearest number of the grid errs by half a step,
  plus what 16-bit arithmetic adds. The step follows from bits and group; on grids with uneven steps (4-bit floats, nf4) it is
  the gap in which the dense number lies.
- Where the quantized side is the reference, the dense numbers must equal the dequantized ones, rounded once.
- Supported formats: integers and fp8 of compressed-tensors, packed or not, its MXFP4 and NVFP4, those of gpt-oss and
  ModelOpt, GPTQ, AWQ, DeepSeek's blocks and bitsandbytes. Other formats are reported as not compared (exit 2).
- Smoothing (AWQ, SmoothQuant) divides a norm, or the outputs of `up_proj` or `v_proj`, and multiplies the columns of the
  matrices that read them: the dense weight is scaled likewise before it is compared. Once that is undone, a smoothed weight
  may be at most 35 % off the dense one; AWQ's search stays below 18 % with 4 bits. A norm that was left as it was, though all
  matrices that read it were scaled alike, is named.
- Where a weight holds another tensor of the checkpoint (gate for up, one expert for another), the message says which.

## Why it matters
A scale of another tensor, groups along the wrong axis or a swapped weight load without an error.

## How to fix
Quantize again from the dense checkpoint. If the method moves weights on purpose (GPTQ), check that the distance is of the order
of a step.

## When it can be wrong
GPTQ corrects later columns for the errors of earlier ones, so its numbers are not the nearest ones: a mean distance below one
step is the warning CMP009. Rotated weights (QuaRot, SpinQuant) are compared as CMP005 says.

## Seen in
vllm-project/vllm#5915, NVIDIA/Model-Optimizer#1807, unslothai/unsloth#6200, vllm-project/llm-compressor#2630
(scales that span 25 in one layer: Qwen3.5-27B writes the same word on and on)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.compare.matching.quantized.distance import QuantizedDistance
from ckptcheck.compare.matching.quantized.swapped_weights import describe_swaps, find_swapped_weights
from ckptcheck.text.formatting import count


@rule("CMP007", "beyond-quantization", severity="error", on="comparison")
def check(comparison: Comparison) -> Iterator[Problem]:
    groups: dict[bool, list[str]] = {}
    worst: dict[bool, tuple[float, float, float]] = {}
    overdone: dict[str, QuantizedDistance] = {}
    undivided = comparison.value_differences.undivided
    scaled = [name for norm in undivided.values() for name in norm.readers]
    if undivided:
        low, high = min(norm.span[0] for norm in undivided.values()), max(norm.span[1] for norm in undivided.values())
        yield Problem(
            f"{count(len(undivided), 'norm is', 'norms are')} as before ({group_names(undivided)}), and all "
            f"{count(len(scaled), 'matrix that reads', 'matrices that read')} {'it' if len(undivided) == 1 else 'them'} had "
            f"the columns multiplied by {low:.2g} to {high:.2g}: {group_names(scaled)}",
            key=next(iter(undivided)),
            names=(*undivided, *scaled),
            hint="divide each norm by the factors of its columns, as AWQ and SmoothQuant do; or quantize again",
        )
    for pair, distance, came_first in comparison.value_differences.quantized:
        if pair.name in scaled:
            continue
        if distance.is_overdone and not distance.not_finite:
            overdone[pair.name] = distance
        elif distance.is_mismatch(came_first=came_first):
            groups.setdefault(came_first, []).append(pair.name)
            old = worst.get(came_first, (0.0, 0.0, 0.0))
            worst[came_first] = max(old[0], distance.rms), max(old[1], distance.steps), max(old[2], distance.largest)
    if overdone:
        error = max(distance.undone_error for distance in overdone.values())
        low, high = max((distance.span for distance in overdone.values()), key=lambda span: span[1] / span[0])
        yield Problem(
            f"smoothing leaves too few steps of the grid to {count(len(overdone), 'weight')}: {group_names(overdone)}; columns "
            f"were multiplied by {low:.2g} to {high:.2g}, and once that is undone the weight is {error:.0%} off the dense one",
            key=next(iter(overdone)),
            names=tuple(overdone),
            hint="quantize again, and smooth these layers less or not at all",
        )
    for came_first, names in groups.items():
        rms, steps, largest = worst[came_first]
        sentence = (
            "the dense weight does not equal the dequantized one"
            if came_first
            else "the quantized weight does not hold the values of the dense one"
        )
        others = {name: other for name, other in find_swapped_weights(comparison).items() if name in names}
        instead = (
            f"; {count(len(others), 'holds another tensor', 'hold other tensors')}: {describe_swaps(others)}"
            if others
            else ""
        )
        yield Problem(
            f"{sentence} in {count(len(names), 'tensor', 'tensors')}: {group_names(names)}; {rms:.2g} steps of the grid apart on "
            f"average, {steps:.3g} at most ({largest:.3g}), where rounding explains 0.5{instead}",
            key=names[0],
            names=tuple(names),
            hint=("dequantize again" if came_first else "quantize again from the dense checkpoint")
            + ", unless the dense one is of another step than the quantized one",
        )
