"""Reads legacy checkpoints: ``mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``, one file a rank, numbered within the rank.

The tensors are joined here as Megatron cuts them: tensor parallelism along an axis that the weight's name tells, pipeline
stages (and their virtual chunks) by counting layers, experts by the rank's number. Sources: megatron/training/checkpointing.py
(get_checkpoint_name), megatron/core/tensor_parallel/layers.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptcheck.checkpoint.megatron.stand_ins import StoredTensor, arguments_of
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item

FILES = ("model_optim_rng.pt", "model_rng.pt")
CHUNK = re.compile(r"model(\d*)")
LAYER = re.compile(r"^(.*?\blayers\.)(\d+)(?=\.)")
EXPERT = re.compile(r"\b(local_experts\.)(\d+)(?=\.)")
GROUPED = re.compile(r"\bexperts\.(linear_fc[12])\.(weight|bias)(\d+)$")
"""Transformer Engine's grouped experts: the number stands at the end."""
ROWS = re.compile(
    r"(word_embeddings|output_layer|lm_head|linear_qkv|query_key_value|linear_q_proj|linear_q_up_proj|linear_kv_up_proj"
    r"|linear_fc1|dense_h_to_4h)\.(weight|bias)$"
)
COLUMNS = re.compile(r"(linear_proj|linear_fc2|self_attention\.dense|dense_4h_to_h)\.weight$")
GATED = re.compile(r"(linear_fc1|dense_h_to_4h)\.(weight|bias)$")


@dataclass(frozen=True)
class Rank:
    """One rank's file. numbers: as its folder is called, two or three. chunks: the model's tensors, by virtual stage.

    arguments: of the training script, iteration and so on: what else the file holds of plain values.
    foreign: the globals it names beyond what a checkpoint needs.
    """

    folder: str
    file: str
    size: int
    numbers: tuple[int, ...]
    chunks: tuple[dict[str, StoredTensor], ...] = field(default=(), repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    iteration: Any = None
    has_rng: bool = False
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A rank's place in the grid."""

    tp: int
    pp: int
    ep: int


def rank_of(folder: str, file: str, size: int, value: Any, foreign: tuple[str, ...]) -> Rank:
    """Describe a rank by what its file holds."""
    state = value if isinstance(value, dict) else {}
    names = sorted(
        (int(match[1] or 0), name) for name in state if type(name) is str and (match := CHUNK.fullmatch(name))
    )
    return Rank(
        folder,
        file,
        size,
        tuple(int(number) for number in folder.rpartition("mp_rank_")[2].split("_")),
        tuple(_flat(state[name]) for _, name in names),
        arguments_of(state.get("args")),
        state.get("iteration") if type(state.get("iteration")) is int else None,
        "rng_state" in state,
        foreign,
    )


def _flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, StoredTensor]:
    """Write nested dictionaries with dots; what is no tensor is left out."""
    found: dict[str, StoredTensor] = {}
    if isinstance(value, dict) and depth < 12:
        for key, entry in value.items():
            if type(key) is not str:
                continue
            if isinstance(entry, StoredTensor):
                found[GROUPED.sub(r"experts.local_experts.\3.\1.\2", prefix + key)] = entry
            elif isinstance(entry, dict):
                found |= _flat(entry, f"{prefix}{key}.", depth + 1)
    return found


def integer(arguments: Mapping[str, Any], name: str, default: int = 1) -> int:
    """Return a positive integer among the arguments, `default` where there is none."""
    value = arguments.get(name)
    return value if type(value) is int and value > 0 else default


def place_of(rank: Rank, arguments: Mapping[str, Any]) -> Place:
    """Return a rank's place: ``mp_rank_00_001`` may be the second stage or the second group of experts; the arguments say."""
    first, *rest = rank.numbers
    if len(rest) == 2:
        return Place(first, rest[0], rest[1])
    if len(rest) == 1:
        return (
            Place(first, rest[0], 0)
            if integer(arguments, "pipeline_model_parallel_size") > 1
            else Place(first, 0, rest[0])
        )
    return Place(first, 0, 0)


def folder_name(place: Place, stages: int, experts: int) -> str:
    """Return how Megatron calls the folder of a rank, in a grid of so many stages and expert ranks."""
    name = f"mp_rank_{place.tp:02d}"
    return name + (f"_{place.pp:03d}" if stages > 1 else "") + (f"_{place.ep:03d}" if experts > 1 else "")


def join(ranks: list[Rank], arguments: Mapping[str, Any]) -> tuple[dict[str, GlobalTensor], dict[str, list[Chunk]]]:
    """Return the tensors of the whole model, and for those that every rank holds whole what each rank holds.

    What cannot be placed is under the name its rank gives it.
    """
    places = {rank.folder: place_of(rank, arguments) for rank in ranks}
    starts = _starts(ranks, places)
    held: dict[str, list[tuple[Place, Chunk, StoredTensor]]] = {}
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
                held.setdefault(whole, []).append((place, chunk, tensor))
    joined = {name: _assembled(name, parts, arguments) for name, parts in held.items()}
    copies = {
        name: [chunk for _, chunk, _ in parts]
        for name, parts in held.items()
        if len(parts) > 1 and len(joined[name].chunks) == 1 and len({part[2].shape for part in parts}) == 1
    }
    return joined, copies


def _starts(ranks: list[Rank], places: Mapping[str, Place]) -> dict[tuple[int, int], int]:
    """Return (virtual chunk, stage) → the number of its first layer: chunks follow each other stage by stage."""
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


def _assembled(name: str, parts: list[tuple[Place, Chunk, StoredTensor]], arguments: Mapping[str, Any]) -> GlobalTensor:
    """Join what the tensor-parallel ranks hold of a weight."""
    stages = {place.pp for place, _, _ in parts}
    first = [part for part in parts if part[0].pp == min(stages)]  # a tied embedding stands on two stages
    by_rank = {place.tp: (chunk, tensor) for place, chunk, tensor in reversed(first)}
    chunks = [by_rank[rank][0] for rank in sorted(by_rank)]
    dtype, shape = first[0][2].dtype, first[0][2].shape
    is_expert = "local_experts" in name or ".experts." in name
    ranks = integer(arguments, "tensor_model_parallel_size")
    if is_expert:
        ranks = integer(arguments, "expert_tensor_parallel_size", ranks)
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
    """Return the upper or the lower half of a rank's gated weight."""
    sizes = (chunk.sizes[0] // 2, *chunk.sizes[1:])
    skip = chunk.skip + half * chunk.elements // 2
    return Chunk(chunk.offsets, sizes, chunk.item, chunk.record, skip)
