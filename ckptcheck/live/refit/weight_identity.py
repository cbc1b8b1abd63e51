"""Names the set of weights that a trainer holds, and the one that an engine holds, from sums of their parts: nothing is gathered.

A rank sums the part of each weight that it holds, where it lies (`ckptcheck_worker.shard_digest`). Here the parts are added up
under the plain Hugging Face names, so that the identity is the one that `ckptcheck identity` prints of a checkpoint with these
weights. A sum depends on where an element stands in its tensor, so weights that are exported joined, such as ``qkv_proj`` of Phi-3,
are summed piece by piece, each a rectangle of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.families import find_family_table
from ckptcheck.compare.bridge.family_table import NAME_NUMBER, split_tensor
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.identity import Identity, TensorIdentity, leave_out_copies
from ckptcheck.compare.matching.side import BUFFER
from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit.observations import DRAFT
from ckptcheck.live.refit.weight_names import EMBEDDING, HEAD, list_parts, trainer_weights
from ckptcheck.live.runtime.engines.base import TensorDigests, WeightPart
from ckptcheck.live.runtime.trainers.base import ShardDigest, Weight
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.shard_digest import add_sums, format_sums
from ckptcheck.values.tensor_part import TensorPart, packed_strides

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.bridge.family_table import FamilyTable

Sums = tuple[int, int]
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Index of the first element of a part in its weight, and the part's shape."""


def identify_trainer(
    target: str, shards: Iterable[ShardDigest], weights: Sequence[Weight], source: Checkpoint | None
) -> Identity:
    """Return the identity of what a trainer's ranks hold.

    shards: what every rank holds, as `ShardedTrainer.shard_digests` returns it for the pieces of joined weights. weights: what the
    trainer exports. source: what it loaded, whose config says how the weights are called, which of them join several, and whether
    the head is the embedding. Raises EvidenceError where the parts do not make up each weight once.
    """
    plain = split_joined_weights(weights, source)
    by_name = {weight.name: weight for weight in plain.weights}
    boxes: list[tuple[str, Box, Sums]] = []
    for shard in shards:
        if shard.name in plain.pieces:
            pieces = plain.pieces[shard.name]
            if len(shard.pieces) != len(pieces):
                raise EvidenceError(f"{shard.name} joins several tensors, and the trainer does not sum them apart")
            boxes += [
                (piece.tensor, (piece.origin, piece.extent), each)
                for piece, each in zip(pieces, shard.pieces, strict=True)
            ]
            continue
        if shard.sums is None:
            raise EvidenceError("the trainer does not sum what it holds")
        if shard.name not in by_name:
            continue
        shape = by_name[shard.name].shape
        origin, extent = [0] * len(shape), list(shape)
        if shape:
            origin[shard.axis], extent[shard.axis] = shard.begin, shard.end - shard.begin
        boxes.append((shard.name, (tuple(origin), tuple(extent)), shard.sums))
    return name_weights(target, _join_boxes(boxes, plain.weights), plain.weights, source)


def identify_engine(
    target: str,
    parts: Sequence[WeightPart],
    sums: Sequence[Sums],
    weights: Sequence[Weight],
    source: Checkpoint | None,
) -> Identity:
    """Return the identity of what an engine's ranks hold under the names of the trainer's weights.

    parts: as `list_weight_parts` returns them. sums: of each. Raises EvidenceError as `identify_trainer` does.
    """
    plain = split_joined_weights(weights, source).weights
    boxes = [(part.weight, (part.origin, part.shape), each) for part, each in zip(parts, sums, strict=True)]
    return name_weights(target, _join_boxes(boxes, plain), plain, source)


def list_weight_parts(
    held: TensorDigests, weights: Sequence[Weight], source: Checkpoint | None, ranks: int
) -> list[WeightPart]:
    """Return, for each parameter of each rank of an engine, the plain weight and the part of it that it holds.

    held: what the engine holds. source: as for `identify_trainer`. ranks: how many the engine has. The result lacks parameters that
    the engine packs, casts or rearranges. Raises EvidenceError for joined weights, because an engine may arrange them anew.
    """
    plain = split_joined_weights(weights, source)
    if plain.rearranged:
        raise EvidenceError(
            f"{join_truncated(list(plain.rearranged))} joins several tensors, and how the engine arranges them is not known"
        )
    by_name = {weight.name: weight for weight in plain.weights}
    found, seen = [], set[tuple[int, str]]()
    for (rank, name), entry in held.items():
        if entry.kind != "parameter" or entry.opaque or name.startswith(DRAFT):
            continue
        for part in _list_parts_of(name, entry.shape, rank, ranks, by_name):
            # the head of a tied model has the memory of the embedding
            if by_name[part.weight].dtype == entry.dtype and (rank, part.weight) not in seen:
                seen.add((rank, part.weight))
                found.append(part)
    return found


def _list_parts_of(
    name: str, shape: tuple[int, ...], rank: int, ranks: int, weights: Mapping[str, Weight]
) -> Iterator[WeightPart]:
    sources = trainer_weights(name, weights)
    if len(sources) == 1 and sources[0].name in (EMBEDDING, HEAD) and len(shape) == len(sources[0].shape) == 2:
        # engines pad the vocabulary at its end, for their kernels
        whole = sources[0].shape
        rows = min(shape[0], whole[0] - rank * shape[0])
        if shape[1] == whole[1] and shape[0] * ranks >= whole[0]:
            if rows > 0:
                yield WeightPart(sources[0].name, whole, (rank * shape[0], 0), rank, name, 0, (rows, whole[1]))
            return
    for weight, part in list_parts(name, shape, ranks, weights):
        if weight in weights and (origin := _find_origin(weights[weight].shape, part.shape, rank, ranks)) is not None:
            yield WeightPart(weight, weights[weight].shape, origin, rank, name, part.begin, part.shape, part.pitch)


def _find_origin(whole: tuple[int, ...], part: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...] | None:
    """Return where a rank's part of a weight begins: everywhere the same, or a share of one axis; None if it is neither."""
    if len(whole) != len(part):
        return None
    axes = [axis for axis in range(len(whole)) if whole[axis] != part[axis]]
    if not axes:
        return (0,) * len(whole)
    if len(axes) > 1 or part[axes[0]] * ranks != whole[axes[0]]:
        return None
    return tuple(rank * part[axis] if axis == axes[0] else 0 for axis in range(len(whole)))


def _join_boxes(boxes: Iterable[tuple[str, Box, Sums]], weights: Sequence[Weight]) -> dict[str, Sums]:
    """Add up the parts of each weight, copies once. Raises EvidenceError where copies differ, or parts are missing or doubled."""
    by_weight: dict[str, dict[Box, Sums]] = {}
    for name, box, sums in boxes:
        if by_weight.setdefault(name, {}).setdefault(box, sums) != sums:
            raise EvidenceError(f"its ranks hold different copies of {name}")
    partial = [
        weight.name
        for weight in weights
        if sum(prod(extent) for _, extent in by_weight.get(weight.name, ())) != prod(weight.shape)
    ]
    if partial:
        raise EvidenceError(f"it does not hold all of {join_truncated(partial)} as plain elements")
    joined = {}
    for name, held in by_weight.items():
        total = (0, 0)
        for sums in held.values():
            total = add_sums(total, sums)
        joined[name] = total
    return joined


def name_weights(
    target: str, sums: Mapping[str, Sums], weights: Sequence[Weight], source: Checkpoint | None
) -> Identity:
    """Return the identity of weights under their plain names, joined ones already split (`split_joined_weights`).

    sums: of each by its name. source: as for `identify_trainer`. Raises EvidenceError for a dtype that is unknown.
    """
    table = find_family_table(source.config if source is not None else None)
    tensors: dict[str, TensorIdentity] = {}
    left_out: dict[str, str] = {}
    for weight in weights:
        if BUFFER.search(weight.name):
            left_out[weight.name] = "a buffer that loaders recompute"
            continue
        form = FORMATS.get(weight.dtype)
        if form is None:
            raise EvidenceError(f"the dtype {weight.dtype} of {weight.name} is unknown")
        nbytes = prod(weight.shape) * form.bits // 8
        tensors[_name_plainly(weight.name, table)] = TensorIdentity(
            weight.dtype, weight.shape, format_sums(sums.get(weight.name, (0, 0)), nbytes)
        )
    tied = HEAD if source is not None and source.components.is_tied else ""
    left_out |= leave_out_copies(tensors, table, tied, EMBEDDING)
    return Identity(target, dict(sorted(tensors.items())), left_out)


def _name_plainly(name: str, table: FamilyTable | None) -> str:
    """Return the plain name of a weight that joins no other: families have more than one name for some."""
    entry = table.variants.get(NAME_NUMBER.sub("{}", name)) if table is not None else None
    if entry is not None and len(entry.targets) == 1 and not entry.stacked:
        return entry.targets[0].format(*NAME_NUMBER.findall(name))
    return normalize_hf_name(name)


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
            raise EvidenceError(f"two of its weights map to {doubled[0]}")
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
