"""Chooses the command that most probably finds the cause of a gap, by what a file says beside the gap."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

NEARER = 3.0
"""How many times nearer to the reference than to the trainer an engine is that has old weights; the trainer is as far from it."""


def choose_next_command(evidence: RolloutEvidence) -> str:
    """Return a hint: the reason and one command. The evidence has a gap beyond its limits, and no cause is known."""
    metadata = evidence.rollouts.metadata
    if (times := _compare_with_reference(evidence)) is not None:
        facts = " ".join(
            f"{key} {value}" for key, value in (metadata.trainer.facts if metadata.trainer else {}).items()
        )
        command = "refit lora" if "lora" in facts.lower() or "adapter" in facts.lower() else "refit"
        nearer = (
            f"is {times:.2g} times nearer to the reference than to" if times < inf else "equals the reference and not"
        )
        return f"the engine {nearer} the trainer, as where no sync reaches it: ckptcheck {command} shows what arrives"
    temperature = metadata.sampling.temperature
    if metadata.logprobs == "unknown" and temperature not in (None, 0, 1):
        return (
            f"the file does not say whether logprobs are divided by the temperature {temperature:g}: ckptcheck preflight JOB"
            " says what both sides compute"
        )
    return (
        f"nothing in the file names a cause: ckptcheck parity why {evidence.target} {metadata.model or 'MODEL'} takes away one"
        " after the other"
    )


def _compare_with_reference(evidence: RolloutEvidence) -> float | None:
    """Return how many times nearer the engine is to the reference than to the trainer; None where it is not, or unknown."""
    reference, gap = evidence.reference_gap, evidence.metrics_or_none
    if reference is None or gap is None or reference.side != "trainer":
        return None
    own = compute_metrics(evidence.rollouts, "engine", "reference")
    if own is None or NEARER * own.abs_mean > min(gap.abs_mean, reference.abs_mean):
        return None
    return gap.abs_mean / own.abs_mean if own.abs_mean else inf
