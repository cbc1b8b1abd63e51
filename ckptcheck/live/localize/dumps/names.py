"""Maps module names in dumps to points: of transformers, vLLM, SGLang (fused projections) and Megatron ([s, b, h]).

Names may have any prefix (``module.``, ``actor.model.``). The layout of fused projections within a rank comes from the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.activations.points import PARTS
from ckptcheck.live.localize.dumps.rank import RankDump, RankPoints

if TYPE_CHECKING:
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions


LAYER = re.compile(r"(?:.{0,400}\.)?layers\.(\d+)(?:\.(.+?))?(:in)?")
CHUNK = re.compile(r"(\d+)\.")
"""A dump of a list of models, Megatron's chunks of layers, begins each name with its place in the list."""
MEGATRON = {
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.core_attention": "self_attn.core",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "self_attention.linear_qkv": "self_attention.linear_qkv",
    "mlp.linear_fc1": "mlp.gate_up_proj",
    "mlp.router": "mlp.gate",
}
OUTSIDE = {
    "embed_tokens": "model.embed_tokens",
    "word_embeddings": "model.embed_tokens",
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "final_layernorm": "model.norm",
    "lm_head": "lm_head",
    "output_layer": "lm_head",
    "logits_processor": "lm_head",
}
INTO = {"self_attn.o_proj": "self_attn.core", "mlp.down_proj": "mlp.act"}
FUSED = ("self_attn.qkv_proj", "self_attention.linear_qkv")
"""Projections of q, k and v as engines and Megatron fuse them."""
ENTRANCES = (None, "input_layernorm", "self_attention.linear_qkv")
"""Modules of a layer whose input is the layer's own, from the best on; None is the layer."""


@dataclass(frozen=True)
class AttentionShape:
    """The sizes that splitting a fused qkv projection needs; None if no config gives them."""

    heads: int | None = None
    """Query heads."""
    groups: int | None = None
    """Key-value heads; each serves a group of query heads."""
    size: int | None = None
    """Width of a head."""

    @property
    def is_known(self) -> bool:
        """Whether a fused projection can be split."""
        return bool(self.heads and self.groups and self.size)

    @classmethod
    def of(cls, geometry: ModelDimensions) -> AttentionShape:
        """Take the sizes from the dimensions of a model."""
        return cls(geometry.heads, geometry.kv_heads, geometry.head_dim)

    def count_ranks(self, points: Mapping[str, Any]) -> int | None:
        """Return how many ranks share the heads, by the width of one rank's part; None if unknown."""
        widths = {matrix.shape[1] for point, matrix in points.items() if point.endswith(("q_proj", "self_attn.core"))}
        if not (self.heads and self.size and len(widths) == 1):
            return None
        count, remainder = divmod(self.heads * self.size, widths.pop() or 1)
        return count if count and not remainder else None


def holds_fused_projection(dump: RankDump) -> bool:
    """Whether a dump has the output of a fused projection of q, k and v."""
    return any(match[2] in FUSED and not match[3] for match in map(LAYER.fullmatch, dump.tensors) if match)


def read_points(dump: RankDump, shape: AttentionShape) -> list[RankPoints]:
    """Return the points of one rank, one object for each chunk of its layers."""
    chunks: dict[int, dict[str, Any]] = {}
    for name, value in dump.tensors.items():
        match = CHUNK.match(name)
        chunks.setdefault(int(match[1]) if match else 0, {})[name] = value
    return [_read_chunk(dump, chunk, tensors, shape) for chunk, tensors in sorted(chunks.items())]


def _read_chunk(dump: RankDump, chunk: int, tensors: Mapping[str, Any], shape: AttentionShape) -> RankPoints:
    """Return the points of one chunk of layers. tensors: as in `RankDump`."""
    batch = _read_batch_shape(tensors)
    found = RankPoints(dump.name, {}, chunk=chunk, tensor_parallel_size=dump.tensor_parallel_size)
    entrances: dict[tuple[int, int], Any] = {}
    exits: dict[int, Any] = {}
    layers = set()
    for name, value in tensors.items():
        if getattr(value, "ndim", 0) < 2 or value.dtype.kind != "f" or not value.size:
            continue
        matrix = _flatten_to_matrix(value, batch)
        for point, part in _yield_points(name, matrix, shape):
            found.points[point] = part
        if (match := LAYER.fullmatch(name)) is not None:
            layers.add(int(match[1]))
            if match[3] and match[2] in ENTRANCES:
                entrances[int(match[1]), ENTRANCES.index(match[2])] = matrix
            elif match[2] is None:
                exits[int(match[1])] = matrix
    found.layers = frozenset(layers)
    if layers:
        found.leaves = exits.get(max(layers))
        found.enters = next(
            (entrances[key] for rank in range(len(ENTRANCES)) if (key := (min(layers), rank)) in entrances), None
        )
    found.tokens = _read_tokens(tensors)
    if found.tensor_parallel_size is None:
        found.tensor_parallel_size = shape.count_ranks(found.points)
    rows = len(found.tokens) if found.tokens is not None else max(map(len, found.points.values()), default=0)
    found.positions = _read_positions(tensors, rows)
    found.starts = _find_starts(rows, batch, found.positions)
    return found


def _find_starts(rows: int, batch: tuple[int, int] | None, positions: Any) -> Any:
    """Return whether a sequence begins at each token, by the batch's shape or by positions that start anew; None without both."""
    import numpy as np

    if batch is not None:
        return np.arange(rows) % batch[1] == 0
    if positions is None:
        return None
    first_axis = positions if positions.ndim == 1 else positions[:, 0]
    return np.diff(first_axis, prepend=first_axis[:1]) < 0


def _list_ids(tensors: Mapping[str, Any]) -> list[Any]:
    """Return the token ids in the input of the model or of its embedding."""
    return [
        value
        for name, value in tensors.items()
        if name.endswith((":ids", "embed_tokens:in", "word_embeddings:in"))
        and getattr(value, "ndim", 0) >= 1
        and value.dtype.kind in "iu"
        and value.size
    ]


def _read_batch_shape(tensors: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (sequences, tokens of each) of a batch that is not packed; None for a single sequence."""
    shapes = {value.shape for value in _list_ids(tensors) if value.ndim == 2 and 1 not in value.shape}
    return shapes.pop() if len(shapes) == 1 else None


def _read_tokens(tensors: Mapping[str, Any]) -> Any:
    """Return the token ids [tokens], sequence after sequence; None if the dump has none."""
    return next((value.reshape(-1) for value in _list_ids(tensors)), None)


def _read_positions(tensors: Mapping[str, Any], rows: int) -> Any:
    """Return the position ids [tokens], or [tokens, 3] of a multimodal rotary embedding; None if no array has this many rows.

    The axes come first in transformers ([3, batch, tokens]), Megatron and vLLM ([3, tokens]), and second in verl's batch
    ([batch, 3, tokens]; with 4 of them, the first is the position in the text).
    """
    for name, value in tensors.items():
        if not name.endswith(":positions") or getattr(value, "ndim", 0) < 1 or value.dtype.kind not in "iu":
            continue
        if value.size == rows:
            return value.reshape(-1)
        for axis in (0, 1):
            if value.ndim > axis + 1 and value.shape[axis] in (3, 4) and value.size == value.shape[axis] * rows:
                moved = value.swapaxes(0, axis) if axis else value
                return moved.reshape(value.shape[axis], -1)[-3:].T
    return None


def _yield_points(name: str, matrix: Any, shape: AttentionShape) -> Iterator[tuple[str, Any]]:
    """Yield the points that a tensor of one rank holds, with their matrices; none for a module that is no point."""
    match = LAYER.fullmatch(name)
    if match is None:
        module = name.rpartition(".")[2]
        if module in OUTSIDE and ".layers." not in name:
            yield OUTSIDE[module], matrix[-1:] if OUTSIDE[module] == "lm_head" else matrix
        return
    layer, part, is_input = f"model.layers.{match[1]}", MEGATRON.get(match[2], match[2]), bool(match[3])
    if is_input:
        if part in INTO:
            yield f"{layer}.{INTO[part]}", matrix
    elif part in PARTS:
        yield f"{layer}.{part}", matrix
    elif part == "mlp.gate_up_proj":
        half = matrix.shape[1] // 2
        yield f"{layer}.mlp.gate_proj", matrix[:, :half]
        yield f"{layer}.mlp.up_proj", matrix[:, half:]
    elif part in FUSED and shape.is_known:
        yield from _split_qkv(layer, matrix, shape, part.endswith("linear_qkv"))


def _split_qkv(layer: str, matrix: Any, shape: AttentionShape, is_grouped: bool) -> Iterator[tuple[str, Any]]:
    """Split a fused qkv projection of one rank. is_grouped: Megatron's layout, else all queries, all keys, all values.

    The width says how many ranks share the heads; with more ranks than key-value heads, each rank has a copy of one.
    """
    all_heads, all_groups, size = shape.heads or 0, shape.groups or 0, shape.size or 0
    for ranks in range(1, all_heads + 1):
        heads, groups = all_heads // ranks, max(1, all_groups // ranks)
        if all_heads % ranks == 0 and matrix.shape[1] == (heads + 2 * groups) * size:
            break
    else:
        return
    # Megatron stores for each group its queries, its key and its value
    if is_grouped:
        blocks = matrix.reshape(len(matrix), groups, heads // groups + 2, size)
        q, k, v = blocks[:, :, :-2], blocks[:, :, -2], blocks[:, :, -1]
    else:
        q, k, v = (
            matrix[:, : heads * size],
            matrix[:, heads * size : (heads + groups) * size],
            matrix[:, -groups * size :],
        )
    for letter, part in zip("qkv", (q, k, v), strict=True):
        yield f"{layer}.self_attn.{letter}_proj", part.reshape(len(matrix), -1)


def _flatten_to_matrix(value: Any, batch: tuple[int, int] | None) -> Any:
    """Reshape [1, tokens, …], [tokens, 1, …], [tokens, …] or, of several sequences, [batch, tokens, …] to [tokens, width].

    batch: (sequences, tokens of each); with it, Megatron's [tokens, batch, …] is put into the same order, sequence after sequence.
    """
    if batch is not None and value.ndim > 2:
        if value.shape[:2] == batch:
            return value.reshape(batch[0] * batch[1], -1)
        if value.shape[:2] == batch[::-1]:
            return value.swapaxes(0, 1).reshape(batch[0] * batch[1], -1)
    while value.ndim > 2 and 1 in value.shape[:2]:
        value = value.squeeze(0 if value.shape[0] == 1 else 1)
    return value.reshape(len(value), -1)
