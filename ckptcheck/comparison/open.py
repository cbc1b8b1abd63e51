"""Opens what the user named as one side of a comparison."""

from __future__ import annotations

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_target
from ckptcheck.comparison.side import Side, side_of


def open_side(target: str, *, jobs: int | None = None) -> Side:
    """Open a target. Raises CkptcheckError where there is nothing to compare, EvidenceError where it cannot be read whole."""
    opened = open_target(target, jobs=jobs)
    if isinstance(opened, Checkpoint):
        return side_of(opened)
    from ckptcheck.comparison.megatron_side import megatron_side

    return megatron_side(opened)
