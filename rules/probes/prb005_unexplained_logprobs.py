"""The engine's logprobs are neither raw nor processed ones of the trainer's logits.

## What it checks
Of the three meanings that an engine's logprobs can have, the best one is within a mult_prob_error of 1.05. Where none is,
the temperature is looked for that brings the trainer's logprobs nearest (golden section over 0.05 to 20). That is asked of the
job's own sampling and, where that has neither top-k nor top-p, of one with both.

## Why it matters
If one temperature explains the gap, a division by it is missing or made twice. If none does, the two sides compute different
models: other weights, other positions, other kernels.

## How to fix
Where a temperature closes the gap, look for a second division and for the engine's defaults. Where none does, compare the
weights (`ckptcheck refit`), and decoding with prefill.

## When it can be wrong
Narrow types on one side only, or a mixture of experts near ties, can be beyond 1.05 with nothing wrong: see the floor of
`ckptcheck parity calibrate`.

## Seen in
NVIDIA-NeMo/RL#4015; vime#64; verl-omni#637, where weights were equal and norms were not
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import LOOSE
from ckptcheck.parity.probes.semantics import Round, SemanticsSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked

HOT = 10.0
"""Nobody samples at that temperature: there all logprobs are nearly alike, and would explain anything."""


@rule("PRB005", "unexplained-logprobs", severity="error", on="probe", when=asked("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    both = trace.of("semantics", SemanticsSeen)
    seen = next((each for each in both.rounds if _unexplained(each)), None)
    if seen is None:
        return
    gap = seen.gaps[seen.meaning]
    where = "" if seen is both.own else f"at {seen.asked} "
    if seen.remains < gap.mean / 3 and HOT > seen.solved > 1 / HOT:
        told = f"temperature {seen.solved:.3g} closes it to {seen.remains:.3f} nats; asked for was {seen.sampling.temperature:g}"
        hint = "look for a second division by the temperature, or a default of the engine's generation config"
    else:
        told = f"no temperature closes the gap; the best, {seen.solved:.3g}, leaves {seen.remains:.3g} nats a token"
        hint = "compare the weights first (ckptcheck refit), then decode and prefill (the probe decode)"
    yield Problem(
        f"{where}the engine's logprobs are none of those that the trainer's logits give (mult_prob_error"
        f" {gap.mult_prob_error:.4g}): {told}",
        hint=hint,
    )


def _unexplained(seen: Round) -> bool:
    return seen.gaps[seen.meaning].mult_prob_error > LOOSE and not seen.shift
