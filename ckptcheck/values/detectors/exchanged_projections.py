"""Finds projections of a layer that hold each other's weights: keys and values, or gate and up.

Training leaves the two sides of a product alike. In a gated feed-forward block, unit j computes act(gate_j · x) × (up_j · x), and
column j of down carries it on. It is linear in up_j, so gradient descent changes the norms of up_j and of down's column j together,
but not those of gate_j (Du, Hu and Lee 2018: the difference of their squares is conserved). In the same way value channel j goes
with column j of the output projection, and key channel j with query channel j. So the correlation of these norms over
the channels distinguishes the matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import MAX_CHANNELS, choose_channels
from ckptcheck.values.detectors.channel_profiles import correlate_profiles
from ckptcheck.values.detectors.matrix_samples import FLOATS, MatrixPart, compute_mean_squares, read_rows
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

ATTENTION = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("query_proj", "key_proj", "value_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("wq", "wk", "wv"),
)
OUTPUTS = ("o_proj", "out_proj", "out_lin", "wo", "dense")
GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"))
"""Names of the parts of an attention or feed-forward block, as families use them together."""
MIN_CHANNELS = 128
"""Channels below which chance may look like a correlation."""
MAX_QUERY_HEADS = 4
"""Query heads that are read for each key head: their mean is compared, and more heads change it little."""
MIN_LAYERS = 4
"""Fewer layers do not show what is usual."""
MIN_USUAL, REVERSED_SHARE = 0.4, 0.4
"""By how much more the matrices of a kind have to agree with their own partners than with each other's, in the median layer; and
which share of that an exchanged pair has to agree less."""
MIN_TYPICAL_SHARE = 0.5
"""Share of the usual correlation that gate has to have with down: a gate hardly follows down if up was drawn anew."""


class ExchangedPair(msgspec.Struct, frozen=True):
    """Two kinds of projections that hold each other's weights in some layers."""

    first: str
    """The name of the first: "k_proj"."""
    second: str
    tensors: tuple[str, ...]
    """The first tensor of each pair, in the order of the layers."""
    layers: tuple[int, ...]
    agreement: float
    """By how much more the least doubtful pair agrees with its own partners than with each other's; negative."""
    usual: float
    """The same in the median of all layers; negative if most layers are exchanged."""


class Block(msgspec.Struct, frozen=True):
    """The matrices of an attention or feed-forward block in one layer. `first` and `second` have one shape."""

    kind: tuple[str, str, str]
    """Prefix of the stack, path of the block in its layer, name of the first matrix."""
    layer: int
    first: TensorStats
    second: TensorStats
    last: TensorStats
    """The matrix that carries the channels on: the output projection, or down."""
    query: TensorStats | None = None
    """The query projection of an attention block."""


class Agreement(msgspec.Struct, frozen=True):
    """Correlations over the channels between the norms of two matrices and their partners' norms."""

    with_own: tuple[float, ...]
    """For each partner, the correlation with its own matrix."""
    with_other: tuple[float, ...]
    """The same with the other matrix. If the matrices are exchanged, so are the correlations."""

    @property
    def differences(self) -> tuple[float, ...]:
        """For each partner, by how much more its own matrix agrees with it."""
        return tuple(own - other for own, other in zip(self.with_own, self.with_other, strict=True))


def find_exchanged_projections(ckpt: Checkpoint) -> list[ExchangedPair]:
    """Return keys and values, and gates and ups, that hold each other's weights, in some layers or in most.

    It uses the samples of the value pass. If query heads share key heads, it reads up to 1,024 rows of the queries and
    256 of the output projection again; so it judges nothing on the Hub. Raises Skip if a file shrank since its values
    were read, OSError if reading fails.
    """
    if not ckpt.can_sample:
        return []
    pairs = []
    for blocks in list_kinds(ckpt):
        if len(blocks) < MIN_LAYERS:
            continue
        with ThreadPoolExecutor(ckpt.jobs) as pool:
            agreements = pool.map(partial(measure_agreement, ckpt), blocks)
            measured = list(zip(blocks, agreements, strict=True))
        usual = median(sum(agreement.differences) for _, agreement in measured)
        typical = median(max(sum(agreement.with_own), sum(agreement.with_other)) for _, agreement in measured)
        exchanged = [
            (block, sum(agreement.differences))
            for block, agreement in measured
            if abs(usual) > MIN_USUAL
            and sum(agreement.differences) < -REVERSED_SHARE * abs(usual)
            and max(agreement.differences) < 0
            # With two partners, a matrix that was drawn anew reverses only one difference.
            and (len(agreement.differences) > 1 or sum(agreement.with_other) > MIN_TYPICAL_SHARE * typical)
        ]
        if exchanged:
            first, second = (stats.name.split(".")[-2] for stats in (exchanged[0][0].first, exchanged[0][0].second))
            tensors = tuple(block.first.name for block, _ in exchanged)
            layers = tuple(block.layer for block, _ in exchanged)
            pairs.append(
                ExchangedPair(first, second, tensors, layers, min(difference for _, difference in exchanged), usual)
            )
    return pairs


def list_kinds(ckpt: Checkpoint) -> list[list[Block]]:
    """Return the blocks of each kind, in the order of the layers."""
    kinds: dict[tuple[str, str, str], list[Block]] = {}
    for stack in ckpt.layout.stacks.values():
        for block in iter_blocks(ckpt, stack):
            kinds.setdefault(block.kind, []).append(block)
    return list(kinds.values())


def iter_blocks(ckpt: Checkpoint, stack: Stack) -> Iterator[Block]:
    """Yield the blocks of a stack whose matrices can be distinguished."""
    for layer in sorted(stack.layers):
        for role in sorted(stack.layers[layer]):
            path, _, name = role.removesuffix(".weight").rpartition(".")
            for query, key, value in ATTENTION:
                if name == key and role.endswith(".weight"):
                    names = [f"{path}.{part}.weight" for part in (key, value, query)]
                    outputs = [f"{path}.{part}.weight" for part in OUTPUTS]
                    outputs.append(f"{path.removesuffix('.self')}.output.dense.weight")
                    last = next((output for output in outputs if output in stack.layers[layer]), None)
                    if last is not None:
                        yield from _make_block(ckpt, stack, layer, path, [*names[:2], last, names[2]])
            for gate, up, down in GATED:
                if name == gate and role.endswith(".weight"):
                    yield from _make_block(
                        ckpt, stack, layer, path, [f"{path}.{part}.weight".lstrip(".") for part in (up, gate, down)]
                    )


def _make_block(ckpt: Checkpoint, stack: Stack, layer: int, path: str, roles: list[str]) -> Iterator[Block]:
    """Yield the block of these matrices if it has them all, and their shapes fit."""
    tensors = [ckpt.values.tensors.get(stack.full_name(layer, role)) for role in roles]
    matrices = [stats for stats in tensors if stats is not None and can_judge(ckpt, stats)]
    if len(matrices) < len(roles):
        return
    first, second, last, *query = matrices
    channels = first.shape[0]
    outer = query[0].shape[0] if query else channels
    if (
        first.shape == second.shape
        and min(channels, first.shape[1], last.shape[0]) >= MIN_CHANNELS
        and outer % channels == 0
        and last.shape[1] == outer
        and (outer == channels or _gives_heads(ckpt))
    ):
        yield Block((stack.prefix, path, roles[0]), layer, first, second, last, query[0] if query else None)


def _gives_heads(ckpt: Checkpoint) -> bool:
    """Whether the config says how wide a head is. Otherwise the query heads that share a key head are unknown."""
    config = ckpt.config
    return config is not None and bool(config.integer("head_dim", "num_key_value_heads", "num_kv_heads"))


def can_judge(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether the value pass sampled a matrix, and it holds plain numbers."""
    return (
        stats.name in ckpt.tensor_to_file
        and stats.dtype in FLOATS
        and stats.name in ckpt.values.samples
        and not (stats.zero or stats.constant or stats.nan or stats.inf)
    )


def measure_agreement(ckpt: Checkpoint, block: Block) -> Agreement:
    """Return how well two matrices agree with their own partners, and with each other's.

    A partner is the matrix that carries the channels on; and, in an attention block, the query.
    """
    import numpy as np

    samples = ckpt.values.samples
    first, second = (np.log(_raise_zeros(samples[stats.name].rows)) for stats in (block.first, block.second))
    last = np.log(measure_partner(ckpt, block))
    if block.query is None:
        return Agreement((correlate_profiles(first, last),), (correlate_profiles(second, last),))
    part = choose_query_part(ckpt, block)
    squares = samples[block.query.name].rows if part is None else compute_mean_squares(read_rows(ckpt, *part), 1)
    query = np.log(_raise_zeros(squares).reshape(-1, len(first)).mean(0))
    return Agreement(
        (correlate_profiles(second, last), correlate_profiles(first, query)),
        (correlate_profiles(first, last), correlate_profiles(second, query)),
    )


def measure_partner(ckpt: Checkpoint, block: Block) -> NDArray[np.float64]:
    """Return the mean squares of the columns of down, or of the outputs, over the sampled channels of up, or of the values."""
    part = choose_partner_part(ckpt, block)
    samples = ckpt.values.samples
    squares = samples[block.last.name].columns if part is None else compute_mean_squares(read_rows(ckpt, *part), 0)
    channels = min(block.first.shape[0], MAX_CHANNELS)
    mean: NDArray[np.float64] = _raise_zeros(squares).reshape(-1, channels).mean(axis=0)
    return mean


def choose_query_part(ckpt: Checkpoint, block: Block) -> MatrixPart | None:
    """Return the rows of the queries that are read for the sampled channels of the keys; None if the pass samples them."""
    outer = expand_heads(ckpt, block, choose_channels(block.first.shape[0]))
    if block.query is None or len(outer) == 1:
        return None
    return MatrixPart(block.query, outer.ravel(), choose_channels(block.query.shape[1]))


def choose_partner_part(ckpt: Checkpoint, block: Block) -> MatrixPart | None:
    """Return the columns of the outputs that are read for the sampled channels of the values; None if the pass samples them."""
    columns = expand_heads(ckpt, block, choose_channels(block.first.shape[0]))
    if len(columns) == 1:
        return None
    return MatrixPart(block.last, choose_channels(block.last.shape[0]), columns.ravel())


def find_head_width(ckpt: Checkpoint, block: Block) -> int:
    """Return the width of a head of an attention block by the config, or else the width of all its keys."""
    config = ckpt.config
    width = config.integer("head_dim") if config is not None else None
    heads = config.integer("num_key_value_heads", "num_kv_heads") if config is not None else None
    return width or (block.first.shape[0] // heads if heads else block.first.shape[0])


def expand_heads(ckpt: Checkpoint, block: Block, channels: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return [group, channel]: the query channels that share each channel of a key head."""
    import numpy as np

    if block.query is None or block.query.shape[0] == block.first.shape[0]:
        return channels[None]
    group = block.query.shape[0] // block.first.shape[0]
    width = find_head_width(ckpt, block)
    head, channel = channels // width, channels % width
    return np.stack([(head * group + member) * width + channel for member in range(min(group, MAX_QUERY_HEADS))])


def _raise_zeros(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean squares without zeros, because their logarithm follows."""
    import numpy as np

    raised: NDArray[np.float64] = np.maximum(squares, 1e-6 * squares.max() + 1e-300)
    return raised
