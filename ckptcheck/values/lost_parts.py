"""Parts of a model that are all zero while their like is not: an expert in a packed stack, an adapter of one layer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.values.expert_copies import stacked
from ckptcheck.values.roles import is_packed, template
from ckptcheck.values.stats import within

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

ADAPTER = ("lora_B", "lora_embedding_B")
SIBLINGS, SHARE = 4, 4
"""Siblings from which they say something, and the share of them (1 in 4) that may at most be zero: where more are, some
layers were left untrained on purpose."""


def zero_experts(ckpt: Checkpoint) -> dict[str, list[int]]:
    """Return packed tensor with all experts of a layer → those that are all zero, while others are not.

    Seen are experts of 1 KiB or more, from the runs of zeros that the value pass left; nothing is read.
    """
    found = {}
    for name in stacked(ckpt):
        stats = ckpt.values.tensors.get(name)
        if stats is None or stats.zero or name not in ckpt.holders or not is_packed(stats):
            continue
        begin = ckpt.shards[stats.shard].tensors[name].data_offsets[0]
        size = ckpt.tensors[name].nbytes // stats.shape[0]
        lost: list[int] = []
        for low, high in within(ckpt.values.zero_runs.get(stats.shard, []), begin, begin + size * stats.shape[0]):
            lost += range(-(-(low - begin) // size), (high - begin) // size)
        if lost:
            found[name] = lost
    return found


def zero_adapters(ckpt: Checkpoint) -> list[str]:
    """Return the ``lora_B`` that are all zero where those of most other layers, and another of the same layer, are not.

    A layer that took no part is zero throughout (cross-attention trained on text), and so are experts that no token chose.
    """
    families: dict[str, list[str]] = defaultdict(list)
    alive: set[str] = set()
    for name, stats in ckpt.values.tensors.items():
        if any(part in ADAPTER for part in name.split(".")) and ".experts." not in name:
            families[template(name)].append(name)
            if not stats.zero:
                alive.add(_layer(name))
    found = []
    for names in families.values():
        lost = [name for name in names if ckpt.values.tensors[name].zero and _layer(name) in alive]
        zero = sum(ckpt.values.tensors[name].zero for name in names)
        if len(names) >= SIBLINGS and SHARE * zero <= len(names):
            found += lost
    return sorted(found)


def _layer(name: str) -> str:
    """Return a name up to its last number, which is the layer's."""
    numbers = list(INDEX.finditer(name))
    return name[: numbers[-1].end()] if numbers else ""
