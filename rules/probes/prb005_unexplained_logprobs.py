"""The trainer's logits explain the engine's logprobs neither as raw nor as processed.

## What it checks
- Of the three kinds of logprobs that an engine can report, the best fit is within a mult_prob_error of 1.05.
- If none is, the probe searches for the temperature that brings the trainer's logprobs nearest (golden section over 0.05 to 20).
- It does this with the job's own sampling and, where that has neither top-k nor top-p, with both of them too.

## Why it matters
If one temperature explains the gap, a division by it is missing or happens twice. If none does, the two sides compute different
models: other weights, other positions, other kernels.

## How to fix
- A temperature closes the gap: look for a second division, and for the engine's defaults.
- None does: compare the weights (`ckptcheck refit`), and decoding with prefill.

## When it can be wrong
Narrow dtypes on one side only, or a mixture of experts near ties, can exceed 1.05 without a fault: compare with the floor of
`ckptcheck parity calibrate`.

## Seen in
NVIDIA-NeMo/RL#4015; vime#64; verl-omni#637, where weights were equal and norms were not
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.gap_summary import LOOSE
from ckptcheck.parity.probes.semantics import SemanticsResult, SemanticsRound
from ckptcheck.parity.probes.trace import ProbeTrace, requires_probe

HOT = 10.0
"""Nobody samples at that temperature: there all logprobs are nearly alike, and would explain anything."""


@rule("PRB005", "unexplained-logprobs", severity="error", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    semantics = trace.result_of("semantics", SemanticsResult)
    unexplained_round = next(
        (semantics_round for semantics_round in semantics.rounds if _is_unexplained(semantics_round)), None
    )
    if unexplained_round is None:
        return
    gap = unexplained_round.gaps[unexplained_round.meaning]
    condition = "" if unexplained_round is semantics.own else f"at {unexplained_round.sampling_label} "
    if unexplained_round.remaining_gap < gap.mean / 3 and HOT > unexplained_round.best_temperature > 1 / HOT:
        detail = (
            f"temperature {unexplained_round.best_temperature:.3g} closes it to {unexplained_round.remaining_gap:.3f} nats; asked"
            f" for was {unexplained_round.sampling.temperature:g}"
        )
        hint = "look for a second division by the temperature, or a default of the engine's generation config"
    else:
        detail = (
            f"no temperature closes the gap; the best, {unexplained_round.best_temperature:.3g}, leaves"
            f" {unexplained_round.remaining_gap:.3g} nats a token"
        )
        hint = "compare the weights first (ckptcheck refit), then decode and prefill (the probe decode)"
    yield Problem(
        f"{condition}the trainer's logits explain the engine's logprobs neither as raw nor as processed"
        f" (mult_prob_error {gap.mult_prob_error:.4g}): {detail}",
        hint=hint,
    )


def _is_unexplained(semantics_round: SemanticsRound) -> bool:
    return semantics_round.gaps[semantics_round.meaning].mult_prob_error > LOOSE and not semantics_round.shift
