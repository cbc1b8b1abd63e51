"""Finds queries and keys whose channels are in the order of the other convention of rotary embeddings.

A rotary embedding turns pairs of channels of a head. Transformers' Llama pairs channel d with channel d + half, Meta's own code
pairs neighbours, and conversions between the two (and GGUF, which keeps Meta's order) permute the rows of both projections. Both
channels of a pair turn with one frequency, and training leaves them with norms alike. Frequencies change slowly from pair to pair,
so in the right order a channel resembles both the one half a head away and its neighbour. In the other order it resembles its
neighbour alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.matrix_samples import FLOATS, MatrixPart, compute_mean_squares, read_rows
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

HALVES = frozenset(
    (
        "apertus", "arcee", "gemma", "gemma2", "granite", "llama", "ministral", "mistral", "mixtral", "olmo", "olmo2", "olmoe",
        "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2",
    )
)  # fmt: skip
"""Model types whose attention turns whole heads and pairs halves (`rotate_half` of transformers 5.23)."""
PROJECTIONS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
MIN_LAYERS, MAX_LAYERS = 4, 8
"""Fewer layers are too few; so many are read at most, evenly spread."""
MAX_HEADS, MAX_COLUMNS = 4, 1024
"""Heads that are read of a matrix, and columns that estimate the norms of their rows (to 2 %)."""
MIN_HEAD = 32
"""With fewer channels in a head chance may look like a relation."""
NEIGHBOURS, HALF = 0.4, 0.15
"""Correlation at or above which neighbours are alike, and at or below which channels half a head apart are not."""


class RopeOrder(msgspec.Struct, frozen=True):
    """How alike the norms of channels are, over the layers that were read."""

    neighbours: float
    """Median correlation of the logarithms of the norms of neighbouring channels."""
    half: float
    """The same of channels half a head apart."""

    @property
    def is_interleaved(self) -> bool:
        """Whether pairs are neighbours and not halves."""
        return self.neighbours >= NEIGHBOURS and self.half <= HALF


def measure_rope_order(ckpt: Checkpoint) -> RopeOrder | None:
    """Measure the order of the channels of queries and keys; None if the family or the sizes do not allow it.

    It reads four heads of both matrices in eight layers. Raises Skip if a file shrank since its values were read, OSError if
    reading fails.
    """
    head, projections = _choose_projections(ckpt)
    pairs = [_correlate_channels(ckpt, stats, head) for stats in projections]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < MIN_LAYERS:
        return None
    return RopeOrder(median(near for near, _ in found), median(far for _, far in found))


def iter_first_parts(ckpt: Checkpoint) -> Iterator[MatrixPart]:
    """Yield the parts of matrices that are read first."""
    head, projections = _choose_projections(ckpt)
    for stats in projections:
        yield from _iter_heads(stats, head)


def _choose_projections(ckpt: Checkpoint) -> tuple[int, list[TensorStats]]:
    """Return the channels of a head, and the projections that are read; none if nothing is judged."""
    config, stack = ckpt.config, ckpt.components.stack
    model_type = config.text.get("model_type", config.model_type) if config is not None else None
    if config is None or stack is None or not isinstance(model_type, str) or model_type not in HALVES:
        return 0, []
    heads, hidden = config.number("num_attention_heads"), config.number("hidden_size")
    head = config.integer("head_dim") or (hidden // heads if heads and hidden else 0)
    layers = [layer for layer in sorted(stack.layers) if {*PROJECTIONS} <= stack.layers[layer]]
    if head < MIN_HEAD or head % 2 or len(layers) < MIN_LAYERS:
        return 0, []
    names = (stack.full_name(layer, role) for layer in layers[:: -(-len(layers) // MAX_LAYERS)] for role in PROJECTIONS)
    found = [stats for name in names if (stats := ckpt.values.tensors.get(name)) is not None]
    return head, [
        stats
        for stats in found
        if stats.dtype in FLOATS
        and len(stats.shape) == 2
        and not stats.shape[0] % head
        and not (stats.nan or stats.inf)
    ]


def _iter_heads(stats: TensorStats, head: int) -> Iterator[MatrixPart]:
    """Yield the heads that are read, each by itself, so that the next one gets the same memory."""
    import numpy as np

    columns = choose_channels(stats.shape[1], MAX_COLUMNS)
    for start in range(0, min(MAX_HEADS, stats.shape[0] // head) * head, head):
        yield MatrixPart(stats, np.arange(start, start + head), columns)


def _correlate_channels(ckpt: Checkpoint, stats: TensorStats, head: int) -> tuple[float, float] | None:
    """Return the correlations of neighbours and of channels half a head apart; None if the norms do not differ."""
    import numpy as np

    with np.errstate(over="ignore"):
        norms = np.sqrt([compute_mean_squares(read_rows(ckpt, *part), 1) for part in _iter_heads(stats, head)])
    if not (norms.all() and np.isfinite(norms).all()):
        return None
    logs = np.log(norms)
    logs -= logs.mean(axis=1, keepdims=True)
    if logs.std() < 1e-3:
        return None
    near = np.corrcoef(logs[:, 0::2].ravel(), logs[:, 1::2].ravel())[0, 1]
    far = np.corrcoef(logs[:, : head // 2].ravel(), logs[:, head // 2 :].ravel())[0, 1]
    return float(near), float(far)
