"""Weights that several ranks hold a part of, where the part of one is zero and the others' are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.values.roles import is_scale, starts_at_zero, vital

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def zero_shards(ckpt: Checkpoint) -> dict[str, list[str]]:
    """Return weight → its parts that are all zero, where another part of it is not. Raises Skip where values are not read.

    Left out are vectors, what starts at zero by design, and the last rows of a vocabulary, as many as may be padding.
    """
    found: dict[str, list[str]] = {}
    roles = vital(ckpt)
    for whole, parts in ckpt.split.items():
        if is_scale(whole) or starts_at_zero(whole) or whole.endswith("bias"):
            continue
        seen = [
            stats for part in parts if (stats := ckpt.values.tensors.get(part)) is not None and len(stats.shape) > 1
        ]
        zero = [stats.name for stats in seen if stats.zero]
        if not zero or len(zero) == len(seen):
            continue
        last = ckpt.vocabularies.get(whole, parts)[-len(zero) :]
        if zero[0] in roles and set(last) == set(zero) and sum(ckpt.tensors[n].shape[0] for n in zero) <= ckpt.padding:
            continue
        found[whole] = zero
    return found
