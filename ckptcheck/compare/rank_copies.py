"""Compares the copies of tensors that several ranks saved: of a mesh that replicates, each rank's file has its own (HSDP)."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.layout_sums import Sums

Key = tuple[str, str]
"""What a set of tensors is called among several, and the name of a tensor."""


def find_unlike_copies(
    whole: Mapping[str, TensorLayout],
    copy: Mapping[str, TensorLayout],
    sums: Mapping[str, Mapping[Key, Sums]],
    kinds: tuple[str, str],
) -> dict[tuple[str, str], list[str]]:
    """Return (file, the file of which it should hold a copy) → the tensors whose parts differ between the two.

    whole: name → tensor, joined from the parts of the ranks that come first. copy: the same of the ranks that have these parts as
    well. sums: file → what it adds to the sums of each tensor. kinds: what both sets are called there.
    """
    unlike: dict[tuple[str, str], list[str]] = {}
    for name, layout in copy.items():
        owners = {chunk.origin: chunk.file for chunk in whole[name].chunks}
        for file, owner in sorted({(chunk.file, owners[chunk.origin]) for chunk in layout.chunks}):
            held = [sums.get(at, {}).get((kind, name), (0, 0)) for at, kind in ((owner, kinds[0]), (file, kinds[1]))]
            if held[0] != held[1]:
                unlike.setdefault((file, owner), []).append(name)
    return unlike
