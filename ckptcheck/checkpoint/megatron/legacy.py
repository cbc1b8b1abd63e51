"""Reads legacy checkpoints: ``mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``, one file per rank, layers numbered within the rank.

This module joins the tensors as Megatron splits them: tensor parallelism along an axis that follows from the weight's name,
pipeline stages (and their virtual chunks) by counting layers, experts by the rank's number. Sources:
megatron/training/checkpointing.py (get_checkpoint_name), megatron/core/tensor_parallel/layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ckptcheck.checkpoint.megatron.structure import positive_argument
from ckptcheck.checkpoint.megatron.stubs import StoredTensor, plain_arguments
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.unpickle import WalkBudget

FILES = ("model_optim_rng.pt", "model_rng.pt")
CHUNK = re.compile(r"model([0-9]{0,6})")
LAYER = re.compile(r"^(.*?\blayers\.)([0-9]{1,6})(?=\.)")
EXPERT = re.compile(r"\b(local_experts\.)([0-9]{1,6})(?=\.)")
GROUPED = re.compile(r"\bexperts\.(linear_fc[12])\.(weight|bias)(\d+)$")
"""Grouped experts of Transformer Engine: the expert's number is at the end of the name."""
ROWS = re.compile(
    r"(word_embeddings|output_layer|lm_head|linear_qkv|query_key_value|linear_q_proj|linear_q_up_proj|linear_kv_up_proj"
    r"|linear_fc1|dense_h_to_4h)\.(weight|bias)$"
)
COLUMNS = re.compile(r"(linear_proj|linear_fc2|self_attention\.dense|dense_4h_to_h)\.weight$")
GATED = re.compile(r"(linear_fc1|dense_h_to_4h)\.(weight|bias)$")


class LegacyRank(msgspec.Struct, frozen=True):
    """The file of one rank."""

    folder: str
    file: str
    size: int
    """Size of the file in bytes."""
    numbers: tuple[int, ...]
    """The one to three numbers in the folder's name."""
    chunks: tuple[dict[str, StoredTensor], ...] = ()
    """The model's tensors, one dictionary per virtual pipeline stage."""
    arguments: Mapping[str, Any] = {}
    """The arguments of the training script, plain values only."""
    iteration: Any = None
    foreign: tuple[str, ...] = ()
    """Globals that the pickle names and that a checkpoint does not need."""


class RankPosition(msgspec.Struct, frozen=True):
    """The position of a rank in the grid of parallel groups."""

    tp: int
    """Tensor-parallel rank."""
    pp: int
    """Pipeline stage."""
    ep: int
    """Expert-parallel rank."""


def describe_rank(folder: str, file: str, size: int, value: Any, foreign: tuple[str, ...]) -> LegacyRank:
    """Describe a rank by the content of its file. Raises UnreadablePickle if its dictionaries nest without end."""
    budget = WalkBudget(min(size, 1 << 18))
    state = value if isinstance(value, dict) else {}
    names = sorted(
        (int(match[1] or 0), name) for name in state if type(name) is str and (match := CHUNK.fullmatch(name))
    )
    return LegacyRank(
        folder,
        file,
        size,
        tuple(int(number) for number in folder.rpartition("mp_rank_")[2].split("_")),
        tuple(_flat(state[name], budget) for _, name in names),
        plain_arguments(state.get("args")),
        state.get("iteration") if type(state.get("iteration")) is int else None,
        foreign,
    )


def _flat(value: Any, budget: WalkBudget, prefix: str = "", depth: int = 0) -> dict[str, StoredTensor]:
    """Flatten nested dictionaries into dotted names; values that are no tensors are omitted."""
    tensors: dict[str, StoredTensor] = {}
    if isinstance(value, dict) and depth < 12:
        budget.spend(len(value))
        for key, entry in value.items():
            if type(key) is not str:
                continue
            if isinstance(entry, StoredTensor):
                tensors[GROUPED.sub(r"experts.local_experts.\3.\1.\2", prefix + key)] = entry
            elif isinstance(entry, dict):
                tensors |= _flat(entry, budget, f"{prefix}{key}.", depth + 1)
    return tensors


def positive_integer(arguments: Mapping[str, Any], name: str, default: int = 1) -> int:
    """Return an argument that is a positive integer (at most 2^20), else `default`."""
    value = positive_argument(arguments, name)
    return default if value is None else value


def rank_position(rank: LegacyRank, arguments: Mapping[str, Any]) -> RankPosition:
    """Return the position of a rank.

    ``mp_rank_00_001`` may be the second pipeline stage or the second group of experts; the arguments decide.
    """
    first, *rest = rank.numbers
    if len(rest) == 2:
        return RankPosition(first, rest[0], rest[1])
    if len(rest) == 1:
        return (
            RankPosition(first, rest[0], 0)
            if positive_integer(arguments, "pipeline_model_parallel_size") > 1
            else RankPosition(first, 0, rest[0])
        )
    return RankPosition(first, 0, 0)


def folder_name(place: RankPosition, stages: int, experts: int) -> str:
    """Return the name of a rank's folder in a grid with this many pipeline stages and expert-parallel ranks."""
    name = f"mp_rank_{place.tp:02d}"
    return name + (f"_{place.pp:03d}" if stages > 1 else "") + (f"_{place.ep:03d}" if experts > 1 else "")


def list_missing_ranks(
    ranks: Iterable[LegacyRank], arguments: Mapping[str, Any]
) -> tuple[tuple[int, int, int], list[str]]:
    """Return the sizes of the grid that the arguments give (tensor, pipeline, expert), and the ranks of it that are not here."""
    tp, pp, ep = (
        positive_integer(arguments, f"{name}_model_parallel_size") for name in ("tensor", "pipeline", "expert")
    )
    places = {rank_position(rank, arguments) for rank in ranks}
    if positive_integer(arguments, "expert_tensor_parallel_size", tp) == tp or ep == 1:
        expected = (
            {RankPosition(t, p, e) for t in range(tp) for p in range(pp) for e in range(ep)}
            if tp * pp * ep <= 1 << 16
            else set()
        )
        return (tp, pp, ep), sorted(folder_name(place, pp, ep) for place in expected - places)
    sizes = {"tp": tp, "pp": pp, "ep": ep}
    return (tp, pp, ep), [
        f"{axis} rank {number}"
        for axis, total in sizes.items()
        for number in sorted(set(range(total)) - {getattr(place, axis) for place in places})
    ]


def join_ranks(
    ranks: list[LegacyRank], arguments: Mapping[str, Any]
) -> tuple[dict[str, GlobalTensor], dict[str, list[Chunk]]]:
    """Return the tensors of the whole model, and the copies of each tensor that several ranks hold whole.

    A tensor that cannot be placed keeps its name within the rank.
    """
    places = {rank.folder: rank_position(rank, arguments) for rank in ranks}
    starts = _starts(ranks, places)
    parts_by_name: dict[str, list[tuple[RankPosition, Chunk, StoredTensor]]] = {}
    for rank in ranks:
        place, item = places[rank.folder], Item(rank.file, 0, rank.size)
        for number, tensors in enumerate(rank.chunks):
            experts = 1 + max((int(match[2]) for name in tensors if (match := EXPERT.search(name))), default=-1)
            for name, tensor in tensors.items():
                whole = LAYER.sub(
                    lambda match: f"{match[1]}{int(match[2]) + starts.get((number, place.pp), 0)}",  # noqa: B023
                    name,
                )
                whole = EXPERT.sub(lambda match: f"{match[1]}{int(match[2]) + place.ep * experts}", whole)  # noqa: B023
                chunk = Chunk((0,) * len(tensor.shape), tensor.shape, item, tensor.record, tensor.skip)
                parts_by_name.setdefault(whole, []).append((place, chunk, tensor))
    joined = {name: _assembled(name, parts, arguments) for name, parts in parts_by_name.items()}
    copies = {
        name: [chunk for _, chunk, _ in parts]
        for name, parts in parts_by_name.items()
        if len(parts) > 1 and len(joined[name].chunks) == 1 and len({part[2].shape for part in parts}) == 1
    }
    return joined, copies


def _starts(ranks: list[LegacyRank], places: Mapping[str, RankPosition]) -> dict[tuple[int, int], int]:
    """Map (virtual chunk, pipeline stage) to the number of its first layer: chunks follow each other stage by stage."""
    lengths: dict[tuple[int, int], int] = {}
    for rank in ranks:
        for number, tensors in enumerate(rank.chunks):
            own = [
                int(match[2])
                for name in tensors
                if (match := LAYER.match(name)) and not match[1].startswith(("mtp.", "vision"))
            ]
            at = number, places[rank.folder].pp
            lengths[at] = max(lengths.get(at, 0), 1 + max(own, default=-1))
    starts, first = {}, 0
    for at in sorted(lengths):
        starts[at] = first
        first += lengths[at]
    return starts


def _assembled(
    name: str, parts: list[tuple[RankPosition, Chunk, StoredTensor]], arguments: Mapping[str, Any]
) -> GlobalTensor:
    """Join the parts of a weight that the tensor-parallel ranks hold."""
    stages = {place.pp for place, _, _ in parts}
    # Megatron stores a tied embedding on two stages: the first one counts.
    first = [part for part in parts if part[0].pp == min(stages)]
    by_rank = {place.tp: (chunk, tensor) for place, chunk, tensor in reversed(first)}
    chunks = [by_rank[rank][0] for rank in sorted(by_rank)]
    dtype, shape = first[0][2].dtype, first[0][2].shape
    is_expert = "local_experts" in name or ".experts." in name
    ranks = positive_integer(arguments, "tensor_model_parallel_size")
    if is_expert:
        ranks = positive_integer(arguments, "expert_tensor_parallel_size", ranks)
    axis = 0 if ROWS.search(name) else 1 if COLUMNS.search(name) else None
    if ranks == 1 or len(chunks) == 1 or axis is None or len(shape) <= axis:
        return GlobalTensor(name, dtype, shape, (chunks[0],))
    if GATED.search(name) and arguments.get("swiglu", True) is not False and all(c.sizes[0] % 2 == 0 for c in chunks):
        chunks = [_half(chunk, half) for half in (0, 1) for chunk in chunks]
    placed, at = [], 0
    for chunk in chunks:
        offsets = tuple(at if number == axis else 0 for number in range(len(shape)))
        placed.append(Chunk(offsets, chunk.sizes, chunk.item, chunk.record, chunk.skip))
        at += chunk.sizes[axis]
    return GlobalTensor(name, dtype, tuple(at if n == axis else size for n, size in enumerate(shape)), tuple(placed))


def _half(chunk: Chunk, half: int) -> Chunk:
    """Return the gate (half 0) or the up projection (half 1) of a rank's gated weight."""
    sizes = (chunk.sizes[0] // 2, *chunk.sizes[1:])
    skip = chunk.skip + half * chunk.elements // 2
    return Chunk(chunk.offsets, sizes, chunk.item, chunk.record, skip)
