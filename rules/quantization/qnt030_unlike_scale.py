"""A scale, or a weight multiplied by its scales, is far from that of the same weight in other layers.

## What it checks
- The numbers of a weight, after multiplication by its scales, have a root mean square (RMS) between a tenth of and ten times
  the median of the same weight in other layers (or experts). The largest scale and the largest number of each weight, which the
  scan knows anyway, are a first look; where they differ by a factor of four, 16 rows are dequantized.
- The largest scale of each weight is at most 10,000 times the median over the same weight in other layers and experts, which
  needs no dequantizing. E8M0 exponents are compared as the powers of two that they encode.
- Half of the quantized weights have an RMS between 0.00001 and 10.

Integers, FP8, NVFP4 and MXFP4 are read as compressed-tensors, ModelOpt, GPTQ, AWQ, DeepSeek and bitsandbytes store them.

Measured on four trained models that packages ship (SmolLM2-135M, all-MiniLM-L6-v2, AntiBERTy, rxnfp), each in fourteen formats:
the ratio is 0.25 to 1.81. With the scales of one layer 200 or 448 times off, or as reciprocals, every weight is reported in
every format; 16 times too large 294 of 308, 16 times too small all.

## Why it matters
A scale of another kind (a reciprocal, a scale before or after division by 448 or 127), or one that a converter took from
elsewhere, has the right name, dtype and shape. One flipped bit in the exponent of a scale multiplies every weight that it
belongs to. vLLM, SGLang and transformers multiply by it, and the layer drowns the others or vanishes.

## How to fix
Compare the file's hash with the original's. Quantize the weight again, or take the scale from the source. `ckptcheck diff`
against the unquantized checkpoint shows which.

## When it can be wrong
- One layer of a trained model that really is ten times as large as its siblings. We know none. The rule accepts small experts,
  because an expert decays if the router never chooses it.
- It misses a scale that is less than ten times off, or exchanged with that of a sibling: `ckptcheck diff` sees both, and
  `ckptcheck verify` where there is a manifest. It misses a factor that all layers share, if half of them stay below 10.
- It needs four siblings, and does not dequantize experts that share a tensor.
- Scales of inputs follow the largest activation of the calibration; a factor of 10,000 between layers is not known.
- `--ignore QNT030`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#53537, NVIDIA/Model-Optimizer#1807 (scales under the name of their reciprocals)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.compare.quantized_siblings import (
    find_absurd_scales,
    find_unlike_quantized_weights,
    measure_absurd_scales,
)

FACTOR = 10.0


@rule("QNT030", "unlike-scale", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    absurd = find_absurd_scales(ckpt)
    for name, (largest, typical) in absurd.items():
        yield Problem(
            f"its largest scale is {largest:.3g}, where {typical:.3g} is typical of its sibling layers: "
            "a flipped bit or a reciprocal",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="compare the file's hash with the original's: if it differs, fetch the file again; if not, quantize again",
        )
    if not ckpt.can_sample:
        raise Skip("weights are read again only on disk, and in an object store with --values")
    if (measured := measure_absurd_scales(ckpt)) is not None:
        rms, number = measured
        key = min(name for name, _, _ in iter_scales(ckpt))
        yield Problem(
            f"half of the {number:,} quantized weights have a root mean square of {rms:.3g} or "
            f"{'more' if rms > 1 else 'less'} after multiplication by their scales, and no trained model has: the scales are "
            "reciprocals, or of another kind",
            file=ckpt.tensor_to_file[key],
            key=key,
            hint="store the number that engines multiply by; ckptcheck diff against the unquantized checkpoint shows the factor",
        )
    reported = {name.rpartition(".")[0] for name in absurd}
    for weight in find_unlike_quantized_weights(ckpt, FACTOR, FACTOR):
        if weight.key.rpartition(".")[0] in reported:
            continue
        times = (
            f"{weight.ratio:,.3g} times as large as"
            if weight.ratio > 1
            else f"{1 / weight.ratio:,.3g} times smaller than"
        )
        yield Problem(
            f"with this scale the weight is {times} its siblings: a root mean square of {weight.rms:.3g}, where "
            f"{weight.typical:.3g} is usual among {weight.siblings:,} weights of this name",
            file=ckpt.tensor_to_file[weight.key],
            key=weight.key,
            hint="compare the file's hash with the original's; if it is the same, quantize again: ckptcheck diff against the "
            "unquantized checkpoint shows the factor",
        )
    ckpt.require_values()
