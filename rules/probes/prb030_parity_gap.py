"""A cell of the matrix has a larger gap than equal precision, or its own floor, allows.

## What it checks
- Every cell's mult_prob_error (the mean of exp|Δ| over the tokens, averaged over the sides that drew them) is at most 1.05
  (`--set max-mult-prob-error`). A cell without a compared token, or with a logprob that is not finite, never passes.
- With `--calibrate` ckptcheck first measures the gap of short prompts with equal weights; `--floor` reads it from a file. A cell's
  mult_prob_error may exceed 1 by at most five times as much (`--set max-floor-multiple`), or by less than 0.0001, which float32 can
  reach over long prompts. Beyond that is a warning.

## Why it matters
1.05 is NeMo-RL's limit for new models. Beyond it the gradient is that of another policy than the one that sampled, and corrections
hide more than they mend. A limit for all models is too wide for a good one: a pair that agrees to six digits on short prompts and
to two on long ones has a fault of its own, long before 1.05.

## How to fix
Check whether the failing cells share a length (decoding against prefill: `ckptcheck parity probe`), a batch size, a way of
sampling or a trainer, and probe that.

## When it can be wrong
- In bfloat16 a small model can exceed the limit without a fault. `--calibrate` measures the floor.
- Sampling reaches less likely tokens than greedy decoding, and their logprobs are less exact.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md; NVIDIA-NeMo/RL#4243, where 60 to 71 % of the sequences were beyond 2;
NovaSky-AI/SkyRL#1862, where a fault of 0.0279 stood out from a floor of 0.0118
"""

from collections.abc import Iterator
from math import inf, isfinite

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.matrix.trace import MatrixTrace

SMALL = 1e-4


@rule("PRB030", "parity-gap", severity="error", on="matrix")
def check(trace: MatrixTrace) -> Iterator[Problem]:
    limits = trace.thresholds
    hint = "ckptcheck parity probe tells causes apart"
    for (row, pair), value in trace.values.items():
        cell = f"{pair}, {row}"
        measured = trace.floor_of(row, pair) if trace.floor else None
        floor = (inf if measured is None else measured) - 1
        if not isfinite(value.error):
            yield Problem(
                f"{cell}: nothing could be compared, or a logprob is not finite",
                hint="look in the log of this cell for an engine or a trainer that stopped; if both answered, ckptcheck localize"
                " names the first module with NaN or Inf",
            )
        elif value.error > limits.mult_prob_error:
            yield Problem(
                f"{cell}: mult_prob_error {value.error:.4g} ± {value.spread:.2g} over {value.tokens} tokens, beyond"
                f" {limits.mult_prob_error:g}",
                hint=hint,
            )
        elif value.error - 1 > max(limits.floor * floor, SMALL):
            times = f"{(value.error - 1) / floor:.1f} times" if floor else "more than any multiple of"
            yield Problem(
                f"{cell}: mult_prob_error {value.error:.7g} is {times} the floor of {1 + floor:.7g}",
                hint=hint,
                severity="warning",
            )
