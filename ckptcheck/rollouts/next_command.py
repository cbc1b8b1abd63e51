"""Chooses the command that most probably finds the cause of a gap, by what a file says beside the gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


def choose_next_command(evidence: RolloutEvidence) -> str:
    """Return a hint: the reason and one command. The evidence has a gap beyond its limits, and no cause is known."""
    metadata = evidence.rollouts.metadata
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
