"""A cell of the matrix has a larger gap than equal precision allows.

## What it checks
Every cell's mult_prob_error (the mean of exp|Δ| over the tokens, averaged over the sides that drew them) is at most 1.05
(`--max-mult-prob-error`). A cell without a compared token, or with a logprob that is not finite, never passes.

## Why it matters
1.05 is NeMo-RL's limit for new models. Beyond it the gradient is that of another policy than the one that sampled, and corrections
hide more than they mend.

## How to fix
Check whether the failing cells share a length (decoding against prefill: `ckptcheck parity probe`), a batch size, a way of
sampling or a trainer, and probe that.

## When it can be wrong
In bfloat16 a small model can exceed the limit without a fault. `--calibrate` measures the floor.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md; NVIDIA-NeMo/RL#4243, where 60 to 71 % of the sequences were beyond 2
"""

from collections.abc import Iterator
from math import isfinite

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.matrix.trace import MatrixTrace


@rule("PRB030", "parity-gap", severity="error", on="matrix")
def check(trace: MatrixTrace) -> Iterator[Problem]:
    limit = trace.thresholds.mult_prob_error
    for (row, pair), value in trace.values.items():
        cell = f"{pair}, {row}"
        if not isfinite(value.error):
            yield Problem(f"{cell}: nothing could be compared, or a logprob is not finite")
        elif value.error > limit:
            yield Problem(
                f"{cell}: mult_prob_error {value.error:.4g} ± {value.spread:.2g} over {value.tokens} tokens, beyond {limit:g}",
                hint="ckptcheck parity probe tells causes apart",
            )
