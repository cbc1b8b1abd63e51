"""Finds the plain tensors in weights that are exported joined, such as ``qkv_proj`` of Phi-3, so that each is summed apart.

A digest belongs to one plain tensor: its sums depend on where an element stands in that. So a joined tensor is summed piece by
piece, each a rectangle of its elements, and nothing is copied apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.families import find_family_table
from ckptcheck.compare.bridge.family_table import split_tensor
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout, packed_strides
from ckptcheck.errors import EvidenceError
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.tensor_part import TensorPart

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.runtime.trainers.base import Weight


@dataclass(frozen=True)
class PlainWeights:
    """The weights of a trainer, with the plain tensors in place of each that joins several."""

    weights: tuple[Weight, ...]
    pieces: Mapping[str, tuple[TensorPart, ...]] = field(default_factory=dict)
    """Joined weight → the rectangles of its bytes that belong to plain tensors."""
    rearranged: tuple[str, ...] = ()
    """Joined weights whose plain tensors do not lie one after the other, but in each other or transposed."""


def split_joined_weights(weights: Iterable[Weight], source: Checkpoint | None) -> PlainWeights:
    """Put the plain tensors in place of the weights that join several.

    source: a checkpoint whose config says which family's tables apply; None: no weight is known to be joined. Raises EvidenceError
    for a weight that does not have the shape that the table expects, and where two come to one plain name.
    """
    plain: dict[str, Weight] = {}
    pieces: dict[str, tuple[TensorPart, ...]] = {}
    rearranged = []
    for weight in weights:
        layouts = find_plain_layouts(weight, source)
        whole = {weight.name: weight}
        if layouts:
            whole = {name: replace(weight, name=name, shape=each.shape) for name, each in layouts.items()}
            pieces[weight.name] = tuple(
                TensorPart(name, each.shape, each.itemsize, chunk.origin, chunk.shape, chunk.offset, chunk.strides)
                for name, each in layouts.items()
                for chunk in each.chunks
            )
            if not all(map(_is_one_block, layouts.values())):
                rearranged.append(weight.name)
        if doubled := sorted(plain.keys() & whole.keys()):
            raise EvidenceError(f"two of its weights are both {doubled[0]}")
        plain |= whole
    return PlainWeights(tuple(plain.values()), pieces, tuple(rearranged))


def find_plain_layouts(weight: Weight, source: Checkpoint | None) -> dict[str, TensorLayout]:
    """Return plain name → where the tensor lies in the bytes of a joined weight; {} for one that joins none.

    Raises EvidenceError as `split_joined_weights` does.
    """
    config = source.config if source is not None else None
    table = find_family_table(config)
    form = FORMATS.get(weight.dtype)
    if table is None or form is None or form.packed:
        return {}
    layout = TensorLayout.contiguous(weight.dtype, form.bits // 8, weight.shape, weight.name, 0)
    try:
        parts = split_tensor(table.variants, weight.name, layout, ModelDimensions.from_config(config)) or {}
    except LayoutError as error:
        raise EvidenceError(f"{weight.name} cannot be split: {error}") from error
    return parts if list(parts.values()) != [layout] else {}


def _is_one_block(layout: TensorLayout) -> bool:
    """Whether the elements of a plain tensor lie one after the other, in their order."""
    strides = packed_strides(layout.shape, layout.itemsize) if layout.shape else ()
    return [(chunk.shape, chunk.strides) for chunk in layout.chunks] == [(layout.shape, strides)]
