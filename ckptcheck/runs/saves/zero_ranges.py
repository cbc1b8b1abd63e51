"""Joins the flat ranges that the ranks of DeepSpeed's ZeRO keep of the fp32 weights into the tensors of the model.

Under ZeRO 1 and 2 the parameters of a group of the optimizer follow each other in one vector, and the ranks share it in equal
lengths: a tensor may begin on one rank and end on the next. Under ZeRO 3 each rank has a share of every parameter, one after the
other. The file of the model has the names and shapes of the parameters. Written from the files of DeepSpeed 0.19;
deepspeed/utils/zero_to_fp32.py says what the keys mean.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from ckptcheck.checkpoint.megatron.stubs import StoredTensor, find_typed_tensor
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive
from ckptcheck.checkpoint.unpickle import MAX_AXES, ObjectStub, UnreadablePickle
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout, cut_flat_range
from ckptcheck.runs.saves.state_files import lay_out, open_state_file
from ckptcheck.text.formatting import join_truncated

OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_(?P<model>\d{1,6})_optim_states\.pt")
"""The file of a rank that has its ranges."""
MODEL = re.compile(r"(?:zero_pp_rank_(?P<rank>\d{1,6})_)?mp_rank_(?P<model>\d{1,6})_model_states\.pt")
"""The file of the model; under ZeRO 3 each rank has one."""
EXPERTS = re.compile(r"(expp_rank_\d+|layer_\d+_expert_\d+)_mp_rank_\d+_\w+_states\.pt")
"""Files of experts that other ranks have."""


class BrokenRanges(Exception):
    """The ranges do not make the model. The message is the end of a sentence."""


class ZeroTensors(NamedTuple):
    """The tensors of a model that ZeRO saved."""

    weights: dict[str, TensorLayout]
    """Name → tensor: those that are trained as fp32, the others as the file of the model has them."""
    left_out: dict[str, str]
    """Name → why it is no tensor of its own."""


class _Range(NamedTuple):
    """Consecutive elements of a vector that one file has."""

    file: str
    offset: int
    elements: int
    dtype: str
    itemsize: int


class _StateFile(NamedTuple):
    name: str
    archive: Archive
    value: Mapping[Any, Any]


def has_zero_ranges(names: Iterable[str]) -> bool:
    """Whether a folder has files of ZeRO's ranks."""
    return any(map(OPTIMIZER.fullmatch, names))


def join_zero_ranges(source: Source) -> ZeroTensors:
    """Say where the weights lie that ZeRO's ranks saved in a folder.

    Raises BrokenRanges where a rank is missing, a file cannot be read, or the ranges do not make the parameters that the model has.
    """
    names = {name: found for name in source.files if (found := OPTIMIZER.fullmatch(name))}
    if any(map(EXPERTS.fullmatch, source.files)):
        raise BrokenRanges("its experts are spread over ranks, and how they share them is not known")
    if len({found["model"] for found in names.values()}) > 1:
        raise BrokenRanges("it has files of several model-parallel ranks, and how they share tensors is not known")
    by_rank = {int(found["rank"]): name for name, found in names.items()}
    ranks = [_open(source, by_rank[rank], "optimizer_state_dict") for rank in sorted(by_rank)]
    states = [rank.value["optimizer_state_dict"] for rank in ranks]
    _check_ranks(sorted(by_rank), states[0])
    stage = _read_stage(states[0])
    models = {int(found["rank"] or 0): name for name in source.files if (found := MODEL.fullmatch(name))}
    wanted = sorted(by_rank) if stage == 3 else [0]
    if absent := [str(rank) for rank in wanted if rank not in models]:
        raise BrokenRanges(f"the files of the model of ranks {join_truncated(absent)} are missing")
    files = [_open(source, models[rank], "module") for rank in wanted]
    model = files[0].value
    groups = _read_shapes(model.get("param_shapes"))
    weights: dict[str, TensorLayout] = {}
    if stage == 3:
        shares = [
            _Vector(_locate(rank, each) for each in _as_list(state.get("fp32_flat_groups")))
            for rank, state in zip(ranks, states, strict=True)
        ]
        weights |= _join_shares({name: shape for group in groups for name, shape in group.items()}, shares)
    else:
        vectors = [
            [_locate(rank, each) for each in _as_list(state.get("single_partition_of_fp32_groups"))]
            for rank, state in zip(ranks, states, strict=True)
        ]
        if any(len(held) != len(groups) for held in vectors):
            raise BrokenRanges(
                f"the model has {len(groups)} groups of parameters, and a rank holds another number of them"
            )
        paddings = states[0].get("param_alignment_paddings")
        for number, group in enumerate(groups):
            behind = paddings[number] if isinstance(paddings, list) and number < len(paddings) else []
            weights |= _join_vector(group, [held[number] for held in vectors], behind)
    weights |= _join_frozen(files, stage)
    return ZeroTensors(*_add_module(files[0], weights))


def _check_ranks(ranks: list[int], state: Mapping[str, Any]) -> None:
    partitions = state.get("partition_count")
    counts = {each for each in _as_list(partitions) if type(each) is int}
    if len(counts) != 1:
        raise BrokenRanges("its groups of parameters are spread over different numbers of ranks")
    (number,) = counts
    if absent := [str(rank) for rank in range(min(number, 1 << 20)) if rank not in ranks]:
        raise BrokenRanges(f"the files of ranks {join_truncated(absent)} are missing")
    if len(ranks) > number:
        raise BrokenRanges(
            f"it has files of {len(ranks)} ranks, and says that {number} wrote it: some are of another save"
        )


def _read_stage(state: Mapping[str, Any]) -> int:
    stage = state.get("zero_stage")
    if isinstance(stage, ObjectStub):
        stage = stage.arguments[0] if len(stage.arguments) == 1 else None
    if stage not in (0, 1, 2, 3):  # 0: the optimizer of bf16 shares its weights as ZeRO 1 does
        raise BrokenRanges("its files do not say under which stage of ZeRO they were written")
    return int(stage)


def _open(source: Source, name: str, key: str) -> _StateFile:
    try:
        archive, value = open_state_file(source, name)
    except (UnreadableArchive, OSError) as error:
        raise BrokenRanges(f"{name} cannot be read: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get(key), dict):
        raise BrokenRanges(f"{name} has no {key}, as DeepSpeed writes it")
    return _StateFile(name, archive, value)


def _read_shapes(groups: Any) -> list[dict[str, tuple[int, ...]]]:
    """Return name → shape for each group of parameters, in the order in which they lie."""
    found = []
    for group in [groups] if isinstance(groups, dict) else _as_list(groups):
        if not isinstance(group, dict) or not all(
            type(name) is str and _is_shape(shape) for name, shape in group.items()
        ):
            raise BrokenRanges("the file of the model does not say which parameters its ranks share")
        found.append({name: tuple(shape) for name, shape in group.items()})
    if not found:
        raise BrokenRanges("the file of the model does not say which parameters its ranks share")
    return found


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, (tuple, list))
        and len(shape) <= MAX_AXES
        and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _locate(file: _StateFile, tensor: Any) -> _Range:
    """Return where the elements of a vector lie."""
    try:
        tensor = find_typed_tensor(tensor)
    except UnreadablePickle as error:
        raise BrokenRanges(f"{file.name} cannot be read: {error}") from error
    layout = lay_out(file.archive, tensor, file.name, 0) if isinstance(tensor, StoredTensor) else None
    if layout is None or not (len(layout.shape) == 1 and tensor.is_contiguous):
        raise BrokenRanges(f"{file.name} has no vector where a share of the weights should be")
    (chunk,) = layout.chunks
    return _Range(file.name, chunk.offset, layout.shape[0], layout.dtype, layout.itemsize)


class _Vector:
    """Ranges that follow each other."""

    def __init__(self, ranges: Iterable[_Range]) -> None:
        self._ranges = list(ranges)
        self._ends = list(accumulate(each.elements for each in self._ranges))
        self.elements = self._ends[-1] if self._ends else 0

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, _Range]]:
        """Yield the parts of the ranges that lie in elements [begin, end), each with its place behind `begin`."""
        for number in range(bisect_right(self._ends, begin), len(self._ranges)):
            each = self._ranges[number]
            at = self._ends[number] - each.elements
            if at >= end:
                return
            first, last = max(begin, at), min(end, self._ends[number])
            if first < last:
                skipped = (first - at) * each.itemsize
                yield first - begin, each._replace(offset=each.offset + skipped, elements=last - first)


def _build(name: str, shape: tuple[int, ...], parts: Iterable[tuple[int, _Range]]) -> TensorLayout:
    """Return a tensor that consists of ranges, each with its first flat element in the tensor."""
    chunks: list[FileChunk] = []
    dtypes: set[tuple[str, int]] = set()
    held = 0
    for begin, part in parts:
        chunks += cut_flat_range(shape, part.itemsize, begin, begin + part.elements, part.file, part.offset)
        dtypes.add((part.dtype, part.itemsize))
        held += part.elements
    if len(dtypes) > 1 or held != prod(shape):
        raise BrokenRanges(f"the shares of its ranks do not make up a whole {name}")
    dtype, itemsize = dtypes.pop() if dtypes else ("F32", 4)
    return TensorLayout(dtype, itemsize, shape, tuple(chunks))


def _join_vector(
    shapes: Mapping[str, tuple[int, ...]], ranges: list[_Range], behind: list[Any]
) -> dict[str, TensorLayout]:
    """Cut the parameters of a group out of the vector that all ranks share. behind: elements of padding behind each parameter."""
    vector, begin = _Vector(ranges), 0
    total, found = vector.elements, {}
    for number, (name, shape) in enumerate(shapes.items()):
        end = begin + prod(shape)
        if end > total:
            raise BrokenRanges(f"its ranks hold {total:,} elements, and {name} would end at {end:,}")
        found[name] = _build(name, shape, vector.cut(begin, end))
        begin = end + (behind[number] if number < len(behind) and type(behind[number]) is int else 0)
    unit = 2 * len(ranges)  # DeepSpeed pads the vector to a multiple of this
    if -(-begin // unit) != -(-total // unit):
        raise BrokenRanges(f"its ranks hold {total:,} elements, and its parameters have {begin:,}")
    return found


def _join_shares(shapes: Mapping[str, tuple[int, ...]], ranks: list[_Vector]) -> dict[str, TensorLayout]:
    """Put each parameter together from the shares of all ranks, which are of equal length but for padding at the end."""
    found, at = {}, 0
    for name, shape in shapes.items():
        elements = prod(shape)
        share = -(-elements // len(ranks))
        found[name] = _build(
            name,
            shape,
            (
                (rank * share + begin, part)
                for rank, held in enumerate(ranks)
                for begin, part in held.cut(at, at + min(share, max(0, elements - rank * share)))
            ),
        )
        at += share
    for rank, held in enumerate(ranks):
        if held.elements != at:
            raise BrokenRanges(
                f"rank {rank} holds {held.elements:,} elements, and its shares of the parameters have {at:,}"
            )
    return found


def _join_frozen(files: list[_StateFile], stage: int) -> dict[str, TensorLayout]:
    """Return the frozen parameters; under ZeRO 3 each rank has a share of every one."""
    shapes, fragments = files[0].value.get("frozen_param_shapes"), files[0].value.get("frozen_param_fragments")
    if not isinstance(shapes, dict) or not isinstance(fragments, dict) or not shapes:
        return {}
    (whole,) = _read_shapes(shapes)
    if stage < 3:
        layouts = {
            name: lay_out(files[0].archive, each, files[0].name, 0) if isinstance(each, StoredTensor) else None
            for name, each in fragments.items()
        }
        if torn := [
            name for name, shape in whole.items() if (held := layouts.get(name)) is None or held.shape != shape
        ]:
            raise BrokenRanges(f"{files[0].name} does not hold all of {join_truncated(torn)}")
        return {name: layout for name in whole if (layout := layouts[name]) is not None}
    found: dict[str, TensorLayout] = {}
    shares_of = [file.value.get("frozen_param_fragments") for file in files]
    for name, shape in whole.items():
        shares = [
            _Vector([_locate(file, share.get(name) if isinstance(share, dict) else None)])
            for file, share in zip(files, shares_of, strict=True)
        ]
        found |= _join_shares({name: shape}, shares)
    return found


def _add_module(file: _StateFile, weights: dict[str, TensorLayout]) -> tuple[dict[str, TensorLayout], dict[str, str]]:
    """Add what only the file of the model has: buffers, and what is not trained. Under ZeRO 3 its other tensors are empty."""
    shared = file.value.get("shared_params")
    left_out = {
        name: f"it is {original}, stored a second time"
        for name, original in (shared.items() if isinstance(shared, dict) else ())
        if type(name) is str and type(original) is str and original in weights
    }
    for name, tensor in file.value["module"].items():
        if type(name) is str and isinstance(tensor, StoredTensor) and name not in weights and name not in left_out:
            layout = lay_out(file.archive, tensor, file.name, 0)
            if layout is None:
                raise BrokenRanges(f"{file.name} does not hold all of {name}")
            if prod(layout.shape):
                weights[name] = layout
    return weights, left_out
