"""Zero points do not belong to the integers that they are subtracted from.

## What it checks
Where a format stores zero points as integers (GPTQ, AWQ, asymmetric compressed-tensors):

- The integers of a weight lie around their zero points: their mean distance is at most half a step. Up to 4 bits each weight is
  judged, above that the median over at least eight weights, of which three in four agree to half a step.
- Where the zero points of a weight differ, the mean integers of their groups follow them: the correlation is at least 0.55.

It reads a few thousand integers of each weight, and at most 96 weights of one name.

Measured on four trained models that packages ship (SmolLM2-135M, all-MiniLM-L6-v2, AntiBERTy, rxnfp), quantized to 4 bits in these
formats: the mean distance is at most 0.12 steps, and about 1 if the zero points are one off; the correlation is at least 0.79, and
at most 0.35 with AWQ's columns in another order or with another layer's zero points.

## Why it matters
GPTQ's first format (`checkpoint_format` gptq) stores zero points less one, gptq_v2 as they are. A converter that mixes them up, or
the eight columns of a word of AWQ, shifts every weight by a step or more, and a typical weight is two steps from zero. Names,
dtypes and shapes are right. GPTQModel (which transformers uses) and vLLM's plain GPTQ and AWQ kernels compute with the shifted
weights, and the text is one token again and again. vLLM's Marlin kernels do not read the zero points of symmetric GPTQ, so the
same files answer well on one machine and badly on another.

## How to fix
Declare the format that the zero points have, or convert them again. `ckptcheck diff` against the unquantized checkpoint shows
whether that was it.

## When it can be wrong
- A weight whose numbers really lie on one side of zero. We know none in a trained model with 32 or more outputs.
- With 8 bits a step is so small that only the median of all weights shows a shift. The rule misses one wrong weight among sound
  ones, zero points that are floats (HQQ), weights with an activation order in the second check, and weights outside the sample.
- `--ignore QNT029`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#38966 (a released model whose config declares gptq, and whose zero points are gptq_v2's), vllm-project/vllm#26343
(gptq_v2 read as gptq), AutoGPTQ/AutoGPTQ#640 (the second format)
"""

from collections.abc import Iterator, Sequence
from statistics import median

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.compare.quantized_siblings import ZeroPointFit, has_zero_points, measure_zero_points
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.blank_weights import find_blank_tensors

# sound weights have at most 0.12 steps and at least 0.79, faulty ones about 1 step and at most 0.35 (measured: see above)
MAX_SHIFT = 0.5
MIN_CORRELATION = 0.55
FEW_BITS = 4
"""Up to so many bits a step is large enough to judge each weight by itself."""
MIN_WEIGHTS = 8
"""Fewest weights of more than FEW_BITS bits for a median that counts."""


@rule("QNT029", "misplaced-zero-point", severity="error", on="quantization", when=has_zero_points)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("weights are read again only on disk, and in an object store with --values")
    # VAL016 reports weights of nothing but zeros.
    fits = [fit for fit in measure_zero_points(ckpt) if fit.name not in find_blank_tensors(ckpt)]
    unrelated = [fit for fit in fits if fit.correlation is not None and fit.correlation < MIN_CORRELATION]
    if unrelated:
        first = unrelated[0]
        yield Problem(
            f"in {count(len(unrelated), 'weight')} of {len(fits):,} the integers do not follow their zero points (correlation "
            f"{first.correlation:.2f}): they are the zero points of other groups, or lie in another order",
            file=ckpt.tensor_to_file[first.name],
            key=first.name,
            hint="convert the zero points again, and run ckptcheck diff against the unquantized checkpoint",
            names=tuple(fit.name for fit in unrelated),
        )
    shifted = [fit for fit in _find_shifted(fits) if fit not in unrelated]
    if shifted:
        first = shifted[0]
        yield Problem(
            f"in {count(len(shifted), 'weight')} of {len(fits):,} the integers lie {abs(first.shift):.2f} steps "
            f"{'above' if first.shift > 0 else 'below'} their zero points on average, where those of a trained model lie around "
            f"them: {_describe_convention(ckpt, first)}",
            file=ckpt.tensor_to_file[first.name],
            key=first.name,
            hint="declare the format that the zero points have, or convert them again",
            names=tuple(fit.name for fit in shifted),
        )
    ckpt.require_values()


def _find_shifted(fits: Sequence[ZeroPointFit]) -> list[ZeroPointFit]:
    """Return the weights whose integers do not lie around their zero points."""
    many_bits = [fit for fit in fits if fit.bits > FEW_BITS]
    usual = median(fit.shift for fit in many_bits) if many_bits else 0.0
    # Chance alone moves the mean of some thousand integers of 8 bits by a step, each in its own direction.
    alike = [fit for fit in many_bits if abs(fit.shift - usual) <= MAX_SHIFT]
    if len(many_bits) < MIN_WEIGHTS or abs(usual) <= MAX_SHIFT or 4 * len(alike) < 3 * len(many_bits):
        many_bits = []
    return [fit for fit in fits if fit.bits <= FEW_BITS and abs(fit.shift) > MAX_SHIFT] + many_bits


def _describe_convention(ckpt: QuantizedCheckpoint, fit: ZeroPointFit) -> str:
    """Say what the zero points seem to be, and what the config declares, if it declares a method."""
    if ckpt.quantization.method == "gptq":
        second = ckpt.quantization.config.get("checkpoint_format") == "gptq_v2"
        if not second and fit.shift < 0:
            return "they are stored as they are, and the config declares gptq, which stores them less one (gptq_v2 does not)"
        if second and fit.shift > 0:
            return "they are stored less one, and the config declares gptq_v2, which stores them as they are"
    return f"they are stored too {'low' if fit.shift > 0 else 'high'}"
