"""A fused module and the shards that were separate in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptcheck.dialects.base import Refused

Fused = Mapping[str, Sequence[str]]


def shards(name: str, fused: Fused) -> list[str] | None:
    """Return the names of the shards of a fused module, None for any other.

    Both engines replace *every* occurrence of the last part, so ``a.qkv_proj.qkv_proj`` goes wrong in the same way here.
    """
    last = name.rsplit(".", 1)[-1]
    return [name.replace(last, shard) for shard in fused[last]] if last in fused else None


def agreed(name: str, names: Sequence[str], decide: Callable[[str], int | None]) -> int | None:
    """Return the entry that decides for the first shard, None if none does. Raises Refused where shards disagree."""
    decided = [decide(shard) for shard in names]
    if len({entry is None for entry in decided}) > 1:
        listed = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is not None]
        others = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is None]
        raise Refused(f"the list matches {', '.join(listed)} of {name} and not {', '.join(others)}")
    return decided[0] if decided else None


def by_suffix(name: str, fused: Fused) -> list[str] | None:
    """Return the names of the shards where a fused name ends the module's, on no boundary: targets in both engines."""
    key = next((key for key in fused if name.endswith(key)), None)
    return [name.replace(key, shard) for shard in fused[key]] if key is not None else None
