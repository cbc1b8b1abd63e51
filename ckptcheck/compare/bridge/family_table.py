"""The table of a model family: stored name → how to split the tensor, and the plain Hugging Face names of the parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.splitters import SplitFunction, keep_whole
from ckptcheck.compare.bridge.tensor_layout import TensorLayout

NAME_NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,5})(?=\.)")
"""The number of a layer or expert within a tensor name."""


class TableEntry(msgspec.Struct, frozen=True):
    """How one stored tensor becomes tensors of the plain Hugging Face form."""

    # Names of the parts; {0} stands for the first number in the stored name, {1} for the second.
    targets: tuple[str, ...]
    split: SplitFunction = keep_whole
    # The first dimension counts experts; its index is one more number for the targets.
    stacked: bool = False


def entry(*targets: str, split: SplitFunction = keep_whole, stacked: bool = False) -> TableEntry:
    """Return a table entry; the short form that the tables of the families use."""
    return TableEntry(targets, split, stacked)


class FamilyTable(msgspec.Struct, frozen=True):
    """The stored forms of one model family; numbers in names are written {}."""

    # Names in Megatron's normal form (see `matching.megatron_side`).
    megatron: Mapping[str, TableEntry]
    # Other forms in which Hugging Face checkpoints of the family are stored.
    variants: Mapping[str, TableEntry] = {}
    # Name → the name of the tensor it duplicates, for tensors that some checkpoints store twice.
    copies: Mapping[str, str] = {}


def split_tensor(
    entries: Mapping[str, TableEntry], name: str, layout: TensorLayout, dimensions: ModelDimensions
) -> dict[str, TensorLayout] | None:
    """Return plain name → part of a stored tensor; None if the table does not list the name.

    Raises LayoutError if the tensor does not have the shape that the table expects.
    """
    entry = entries.get(NAME_NUMBER.sub("{}", name))
    if entry is None:
        return None
    numbers = NAME_NUMBER.findall(name)
    parts = {}
    for number, part in enumerate(layout.unstack()) if entry.stacked else [(-1, layout)]:
        own = [*numbers, str(number)] if entry.stacked else numbers
        for target, piece in zip(entry.targets, entry.split(part, dimensions), strict=True):
            parts[target.format(*own)] = piece
    return parts


def find_original(copies: Mapping[str, str], name: str) -> str | None:
    """Return the name of the tensor that this one duplicates according to the table; None if it duplicates none."""
    target = copies.get(NAME_NUMBER.sub("{}", name))
    return target.format(*NAME_NUMBER.findall(name)) if target is not None else None
