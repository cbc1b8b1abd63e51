"""Opens what the user named as one side of a comparison, whatever its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.compare.matching.megatron_side import build_megatron_side
from ckptcheck.compare.matching.side import ComparisonSide, build_checkpoint_side

if TYPE_CHECKING:
    from ckptcheck.runners.runner import Runner


def open_side(
    target: str, *, jobs: int | None = None, follow_links: bool = False, runner: Runner | None = None
) -> ComparisonSide:
    """Open what the user named as one side of a comparison. runner: will read its bytes.

    Raises CkptcheckError if there is nothing to compare, EvidenceError if the checkpoint cannot be read completely.
    """
    evidence = open_target(target, runner=runner, jobs=jobs, options=ScanOptions(follow_links=follow_links))
    if isinstance(evidence, Checkpoint):
        return build_checkpoint_side(evidence)
    return build_megatron_side(evidence)
