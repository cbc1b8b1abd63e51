"""``ckptcheck identity``: one name for a set of weights, whatever their layout."""

import os
from typing import TYPE_CHECKING, Annotated

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import TARGET_FORMS, Argument, FollowLinks, Jobs, Like, StrPath
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.identity import Identity


@verb()
def identity(
    target: Annotated[StrPath, Argument(TARGET_FORMS, metavar="TARGET...", is_repeated=True)],
    *,
    like: Like = None,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    observer: Observer = SILENT,
) -> "Identity":
    """Print one name for a set of weights, the same for every layout: shards, a Megatron run on any grid, fused projections.

    Several targets are printed one below the other. Exit codes: 0 printed, 2 a tensor is missing or cannot be read.

    Returns the identity. Without `like` a Megatron run keeps its own names, and has another identity than its export. Raises
    EvidenceError where a tensor is missing or cannot be read: part of a set of weights has no identity.
    """
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.identity import compute_identity, identify_checkpoint
    from ckptcheck.runs.saves.rank_shards import plan_rank_files

    name = os.fspath(target)
    options = ScanOptions(follow_links=follow_links)
    reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
    with observer.progress(name) as progress:
        try:
            ckpt = open_target(name, jobs=jobs, options=options)
        except CkptcheckError:
            plan = plan_rank_files(name, follow_links=follow_links)
            if plan is None:
                raise
            return compute_identity(plan, jobs=jobs or os.cpu_count() or 1, progress=progress)
        return identify_checkpoint(ckpt, reference, jobs=jobs, progress=progress)
