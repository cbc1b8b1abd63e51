"""From where on two runs of one engine under the same weights are not the same."""

from __future__ import annotations

from ckptcheck.parity.gap import Gap
from ckptcheck.parity.probes.setups import Alternative, AlternativesSeen

TIGHT, LOOSE = 1e-3, 1.05
"""Nats between two set-ups in equal arithmetic, and the mean of exp|Δ|. NeMo-RL's diagnostics 4 and 2 have these numbers; the
first allows 1e-3 of the logprob itself on top, which a logprob of -10 makes 11 times as much."""


def apart(gap: Gap, dtype: str) -> bool:
    """Say whether a gap is more than rounding: in float32 by the largest difference, in narrower types by the mean of exp|Δ|."""
    return gap.largest > TIGHT if dtype == "float32" else gap.mult_prob_error > LOOSE


def differing(seen: AlternativesSeen) -> list[Alternative]:
    """Return the set-ups that compute something else than the first."""
    return [each for each in seen.others if apart(each.prefill, seen.dtype) or apart(each.decode, seen.dtype)]
