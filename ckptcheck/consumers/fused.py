"""Expands a fused module into the shards that are separate in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptcheck.consumers.base import SplitModuleError

FusedModules = Mapping[str, Sequence[str]]
"""Fused module → its shards."""
DENSE_MODULES: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""What both engines take for fused modules if the model has no mapping for them (SGLang: `_FALLBACK_FUSED_SHARDS`)."""


def expand_fused(name: str, fused: FusedModules) -> list[str] | None:
    """Return the names of the shards of a fused module, None for any other.

    Both engines replace *every* occurrence of the last component, so ``a.qkv_proj.qkv_proj`` goes wrong here as there.
    """
    last = name.rsplit(".", 1)[-1]
    return [name.replace(last, shard) for shard in fused[last]] if last in fused else None


def require_agreement(name: str, names: Sequence[str], decide: Callable[[str], int | None]) -> int | None:
    """Return the entry that decides on the first shard, None if none does. Raises SplitModuleError if shards disagree."""
    decided = [decide(shard) for shard in names]
    if len({entry is None for entry in decided}) > 1:
        listed = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is not None]
        others = [shard.rsplit(".", 1)[-1] for shard, entry in zip(names, decided, strict=True) if entry is None]
        raise SplitModuleError(
            f"the list matches {', '.join(listed)} of {name} but not {', '.join(others)}; "
            "the parts of a fused layer must match together"
        )
    return decided[0] if decided else None


def expand_by_suffix(name: str, fused: FusedModules) -> list[str] | None:
    """Return the names of the shards if the module's name ends in a fused name, at a dot or not: targets in both engines."""
    key = next((key for key in fused if name.endswith(key)), None)
    return [name.replace(key, shard) for shard in fused[key]] if key is not None else None
