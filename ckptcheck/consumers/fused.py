"""Expands a fused module into the shards that are separate in the checkpoint, and looks modules up in lists of skipped ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptcheck.consumers.base import SplitModuleError
from ckptcheck.consumers.entries import EntryList

FusedModules = Mapping[str, Sequence[str]]
"""Fused module → its shards."""
DENSE_MODULES: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""The fused modules that both engines assume if the model has no mapping for them (SGLang: `_FALLBACK_FUSED_SHARDS`)."""


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


def find_skipped_by_vllm(entries: EntryList, name: str, fused: FusedModules, *, exact: bool) -> int | None:
    """Return the entry by which vLLM's `is_layer_skipped` is true. exact: its mode for fp8 and ModelOpt, else AWQ's."""
    direct = entries.first_match(name)
    names = expand_fused(name, fused)
    if names is not None:
        return direct if direct is not None else require_agreement(name, names, entries.first_match)
    if exact and "experts" in name:
        return next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return direct


def find_skipped_by_sglang(entries: EntryList, name: str, fused: FusedModules) -> int | None:
    """Return the entry by which SGLang's `is_layer_skipped` is true."""
    last = name.rsplit(".", 1)[-1]
    mapping = fused if last in fused else DENSE_MODULES
    names = expand_fused(name, mapping)
    if names is not None:
        return require_agreement(name, names, entries.first_match)
    hit = entries.first_match(name)
    if "gate_up_proj" in name:
        both = [name.replace("gate_up_proj", shard) for shard in ("gate_proj", "up_proj")]
        if hit is None and all(each in entries.texts for each in both):
            hit = entries.texts.index(both[0])
    elif "experts" in name and hit is None:
        hit = next((i for i, text in enumerate(entries.texts) if "experts" in text and name in text), None)
    return hit
