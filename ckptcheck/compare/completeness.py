"""Says what a checkpoint lacks: a manifest or an identity of half a checkpoint proves nothing."""

from __future__ import annotations

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated


def describe_absent(ckpt: Checkpoint | Megatron) -> str | None:
    """Describe what a checkpoint lacks; None if nothing is known to be missing."""
    if isinstance(ckpt, Megatron):
        ranks = {rank.folder for rank in ckpt.ranks}
        absent = [*(folder for folder in ckpt.rank_folders if folder not in ranks), *ckpt.unread]
        uneven = [key for key, cover in ckpt.tiling_gaps.items() if cover.missing or cover.doubled or cover.beyond]
        if not absent and uneven:
            return f"no chunks, or too many, hold parts of {join_truncated(uneven)}"
    else:
        absent = ckpt.list_broken()
    if absent:
        return f"{join_truncated(absent)} cannot be read"
    return None if ckpt.tensors else "it holds no tensor"
