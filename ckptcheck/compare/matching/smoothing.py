"""Verifies smoothing: a norm's weight is divided by scales, and the columns of the matrices that read it are multiplied by them.

AWQ and SmoothQuant do so before they quantize (llmcompressor modifiers/awq and modifiers/smoothquant; AutoAWQ
quantize/scale.py). The model stays the same, since norm × column does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ckptcheck.compare.bridge.family_table import NAME_NUMBER
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.cast import can_cast
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.compare.matching.quantized.distance import (
    CHUNK_ELEMENTS,
    QuantizedDistance,
    Scaling,
    compare_quantized_pair,
)
from ckptcheck.compare.matching.quantized.weight import QuantizedWeight
from ckptcheck.compare.matching.tensor_files import TensorFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

ATTENTION = ("self_attn", "attn", "attention", "linear_attn")
FEED_FORWARD = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "fc1")
READING_BLOCKS = {
    "input_layernorm": ATTENTION, "ln_1": ATTENTION, "attention_norm": ATTENTION, "self_attn_layer_norm": ATTENTION,
    "post_attention_layernorm": FEED_FORWARD, "pre_feedforward_layernorm": FEED_FORWARD, "ln_2": FEED_FORWARD,
    "ffn_norm": FEED_FORWARD, "final_layer_norm": FEED_FORWARD,
    "q_a_layernorm": ("q_b_proj",), "kv_a_layernorm": ("kv_b_proj",),
}  # fmt: skip
"""Norm → modules beside it that read it, in transformers' names. Both blocks of a layer read its first norm if it has no other."""
OTHER_INPUT = re.compile(
    r"\.(o_proj|out_proj|dense|down_proj|w2|fc2|c_proj|wo|dense_4h_to_h|q_b_proj|kv_b_proj)(\.weight)?$"
)
"""Matrices of the blocks that read something else than the norm before the block."""
FOLLOWERS = {".up_proj.": ".down_proj.", ".w3.": ".w2.", ".v_proj.": ".o_proj."}
"""Matrix whose outputs AWQ may divide → the matrix that reads them. Where heads share values, each value is read once a head."""
FIRST_ROWS = 64
"""Rows that are read first: most matrices that do not belong together differ in them already."""
NOISE = 0.05
"""Factor of a row, less one, that rounding to few bits cannot make: 4 bits and 64 columns leave a hundredth."""
ESTIMATE_SLACK = 1 / 16
"""Relative error of a number where the factors are estimated from numbers of 4 bits: four deviations with 64 columns."""
ALIKE = 0.75
"""Share of the columns whose factors are the same in all matrices that read a norm: those of small columns have few steps."""
ROUNDING = {"F64": 2.0**-21, "F32": 2.0**-21, "F16": 2.0**-9, "BF16": 2.0**-6}
"""Relative difference of norm × column that four roundings explain: of both numbers of the product on both sides."""


class SmoothedNorm(msgspec.Struct, frozen=True):
    """A norm whose weight changed, and the matrices that read it."""

    pair: TensorPair
    # The first side's weight divided by the second's: the factor of the columns.
    scales: NDArray[np.float64]
    readers: tuple[TensorPair, ...]


class UndividedNorm(msgspec.Struct, frozen=True):
    """A norm that is as before, though the columns of all matrices that read it were multiplied."""

    # The smallest and the largest factor of a column.
    span: tuple[float, float]
    readers: list[str]


class Smoothing(msgspec.Struct):
    """What was scaled between the two sides, and what of it the matrices that follow undo."""

    norms: list[SmoothedNorm] = msgspec.field(default_factory=list)
    # Matrix → the one that reads its outputs, the factor of each row, and the same for each of the reader's columns.
    rows: dict[str, tuple[str, NDArray[np.float64], NDArray[np.float64]]] = msgspec.field(default_factory=dict)
    # Norms whose readers all undo the change.
    consistent: list[str] = msgspec.field(default_factory=list)
    # Norm → the readers that do not undo it, though others do.
    broken: dict[str, list[str]] = msgspec.field(default_factory=dict)
    # Matrices whose scaled rows the matrix that follows undoes.
    scaled_outputs: list[str] = msgspec.field(default_factory=list)
    # Plain pairs that differ only by the smoothing: norms, their biases, and matrices.
    explained: set[str] = msgspec.field(default_factory=set)

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Matrix → factor of each column, from its norm."""
        return {reader.name: norm.scales for norm in self.norms for reader in norm.readers}

    def list_scalings(self) -> dict[str, Scaling]:
        """Return weight → what smoothing may have multiplied it by."""
        columns = self.columns
        scalings = {name: Scaling(factors) for name, factors in columns.items()}
        for name, (follower, rows, read) in self.rows.items():
            scalings[name] = Scaling(columns.get(name), rows, ESTIMATE_SLACK)
            scalings[follower] = Scaling(1 / read, slack=ESTIMATE_SLACK)
        return scalings

    def judge(
        self,
        quantized: list[tuple[TensorPair, QuantizedDistance, bool]],
        plain: Mapping[str, TensorPair],
        files: tuple[TensorFiles, TensorFiles],
    ) -> None:
        """Find out what of the scaling is undone. Raises UnreadableFile.

        quantized: quantized pairs and their distances; a distance is measured again where the scaling of its rows is not
        undone. plain: the other pairs, by name.
        """
        smoothed = {pair.name: distance.is_smoothed for pair, distance, _ in quantized}
        columns = self.columns
        for name, (follower, scales, read) in self.rows.items():
            both = (name, follower)
            if all(smoothed.get(one, False) for one in both):
                self.scaled_outputs.append(name)
            elif all(one in plain for one in both) and _is_scaled_by_rows(
                plain[name], plain[follower], scales, read, columns.get(name), files
            ):
                self.scaled_outputs.append(name)
                self.explained.update(both)
            else:
                for at, (pair, distance, came_first) in enumerate(quantized):
                    if pair.name in both and distance.is_smoothed:
                        own = Scaling(columns[pair.name]) if pair.name in columns else None
                        again = compare_quantized_pair(pair, *files, own)
                        if isinstance(again, QuantizedDistance):
                            quantized[at] = pair, again, came_first
                            smoothed[pair.name] = again.is_smoothed
        for norm in self.norms:
            self._judge_norm(norm, smoothed, plain, files)

    def _judge_norm(
        self,
        norm: SmoothedNorm,
        smoothed: Mapping[str, bool],
        plain: Mapping[str, TensorPair],
        files: tuple[TensorFiles, TensorFiles],
    ) -> None:
        """Find out whether the readers of a norm undo its change. smoothed: see `judge`; plain: pairs by name."""
        undone: list[str] = []
        kept: list[str] = []
        for reader in norm.readers:
            if (is_undone := smoothed.get(reader.name)) is None:
                rows = self.rows[reader.name][1] if reader.name in self.scaled_outputs else None
                axis = -1 if reader.first.shape[-1] == norm.scales.size else -2
                is_undone = _matches(reader, norm.scales, axis, files, _tolerance(reader, norm.pair), rows)
            (undone if is_undone else kept).append(reader.name)
        if not undone:
            return
        self.explained.update(name for name in undone if name not in smoothed)
        if kept:
            self.broken[norm.pair.name] = kept
            return
        self.consistent.append(norm.pair.name)
        self.explained.add(norm.pair.name)
        bias = plain.get(norm.pair.name.removesuffix("weight") + "bias")
        if bias is not None and _matches(bias, 1 / norm.scales, -1, files, _tolerance(bias, norm.pair)):
            self.explained.add(bias.name)


def find_smoothed_norms(
    pairs: Sequence[TensorPair], files: tuple[TensorFiles, TensorFiles], *, head: str, is_tied: bool, is_centred: bool
) -> list[SmoothedNorm]:
    """Return the norms with another weight on the second side. Raises UnreadableFile.

    Args:
        pairs: all pairs that are compared.
        files: of the first and of the second side.
        head: plain name of the LM head, which reads the last norm.
        is_tied: the head is the embedding, so nothing can undo a change of the last norm.
        is_centred: norms multiply by 1 + weight.
    """
    return [
        SmoothedNorm(pair, scales, readers)
        for pair, readers in iter_norm_readers(pairs, head=head, is_tied=is_tied)
        if (scales := _read_scales(pair, files, float(is_centred))) is not None
    ]


def iter_norm_readers(
    pairs: Sequence[TensorPair], *, head: str, is_tied: bool
) -> Iterator[tuple[TensorPair, tuple[TensorPair, ...]]]:
    """Yield each norm, and the matrices that read it. Arguments as of `find_smoothed_norms`."""
    by_parent: dict[str, list[TensorPair]] = {}
    for pair in pairs:
        words = pair.name.split(".")
        for end in range(1, len(words)):
            by_parent.setdefault(".".join(words[:end]), []).append(pair)
    for pair in pairs:
        parent, _, leaf = pair.name.removesuffix(".weight").rpartition(".")
        if not pair.name.endswith(".weight") or len(pair.first.shape) != 1:
            continue
        size = pair.first.shape[0]
        if leaf in READING_BLOCKS:
            readers = tuple(_iter_readers(parent, leaf, size, by_parent.get(parent, [])))
        elif leaf in ("norm", "final_layernorm", "ln_f") and not is_tied and not NAME_NUMBER.search(pair.name):
            readers = tuple(other for other in pairs if other.name == head and other.first.shape[-1:] == (size,))
        else:
            continue
        if readers:
            yield pair, readers


def find_undivided_norms(
    norms: Iterable[tuple[TensorPair, tuple[TensorPair, ...]]],
    far: Mapping[str, int],
    files: tuple[TensorFiles, TensorFiles],
) -> dict[str, UndividedNorm]:
    """Return the norms that smoothing should have divided: all their readers have the same columns multiplied, and they do not.

    Args:
        norms: those that did not change, and the matrices that read them.
        far: quantized matrix → its numbers that are farther from the dense ones than rounding explains.
        files: of the first side, which is dense, and of the second.

    Raises as `compare_quantized_pair`.
    """
    found = {}
    for pair, readers in norms:
        if len(readers) < 2 or not all(reader.name in far for reader in readers):
            continue
        own = [_estimate_columns(reader, files) for reader in readers]
        factors = np.median(own, axis=0)
        agrees = (np.abs(own / factors - 1) <= ESTIMATE_SLACK).mean(1) >= ALIKE
        if not agrees.all() or not (np.abs(factors - 1) > NOISE).mean() > NOISE:
            continue
        scaling = Scaling(factors, slack=2 * ESTIMATE_SLACK)
        again = [compare_quantized_pair(reader, *files, scaling) for reader in readers]
        if all(
            isinstance(one, QuantizedDistance) and one.is_smoothed and 4 * one.beyond <= far[reader.name]
            for reader, one in zip(readers, again, strict=True)
        ):
            span = float(factors.min()), float(factors.max())
            found[pair.name] = UndividedNorm(span, [reader.name for reader in readers])
    return found


def _estimate_columns(pair: TensorPair, files: tuple[TensorFiles, TensorFiles]) -> NDArray[np.float64]:
    """Return the factor of each column of the second side, by least squares; NaN for a dtype without real numbers."""
    products, squares = np.zeros((2, pair.first.shape[1]))
    step = max(1, CHUNK_ELEMENTS // pair.first.shape[1])
    for begin in range(0, pair.first.shape[0], step):
        end = min(begin + step, pair.first.shape[0])
        ours, theirs = (
            read_rows(side, file, begin, end) for side, file in zip((pair.first, pair.second), files, strict=True)
        )
        if ours is None or theirs is None:
            return np.full_like(squares, np.nan)
        with np.errstate(all="ignore"):
            products += (ours * theirs).sum(0)
            squares += (ours * ours).sum(0)
    with np.errstate(all="ignore"):
        return np.where(squares == 0, 1.0, products / squares)


def _iter_readers(parent: str, leaf: str, size: int, beside: Iterable[TensorPair]) -> Iterator[TensorPair]:
    """Yield the matrices beside a norm that read it."""
    names = {pair.name.removeprefix(f"{parent}.").split(".")[0] for pair in beside}
    if leaf == "post_attention_layernorm" and "pre_feedforward_layernorm" in names:
        return  # Gemma: it norms what the attention wrote
    blocks = READING_BLOCKS[leaf]
    if leaf in ("input_layernorm", "ln_1") and len(names & READING_BLOCKS.keys()) == 1:
        blocks = ATTENTION + FEED_FORWARD
    for pair in beside:
        inside = pair.name.removeprefix(f"{parent}.").split(".")[0] in blocks
        own = blocks[0] in ("q_b_proj", "kv_b_proj")
        reads = (
            inside
            and (own or not OTHER_INPUT.search(pair.name))
            and not pair.name.endswith("bias")
            and len(pair.first.shape) > 1
        )
        if reads and size in pair.first.shape[-2:]:
            yield pair


def _read_scales(pair: TensorPair, files: tuple[TensorFiles, TensorFiles], offset: float) -> NDArray[np.float64] | None:
    """Return the factor of each channel; None if nothing changed, or a channel became zero, another sign or no number."""
    numbers = [
        file.read_numbers(side, kind="f8") + offset
        for side, file in zip((pair.first, pair.second), files, strict=True)
        if isinstance(side, TensorLayout) and can_cast(side.dtype, "F64")
    ]
    if len(numbers) < 2:  # quantized, or complex
        return None
    ours, theirs = numbers
    with np.errstate(all="ignore"):
        scales = np.where((ours == 0) & (theirs == 0), 1.0, ours / theirs)
    return scales if (scales != 1).any() and np.isfinite(scales).all() and (scales > 0).all() else None


def find_row_scales(
    pairs: Sequence[TensorPair],
    columns: Mapping[str, NDArray[np.float64]],
    files: tuple[TensorFiles, TensorFiles],
    kv_heads: int | None = None,
) -> dict[str, tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Return matrix → the matrix that reads its outputs, the factor of each row of the second side, and of each column that reads.

    columns: matrix → factor of each column, from its norm. kv_heads: the heads of keys and values, each of which several heads may
    read. Raises as `QuantizedWeight.dequantize_rows`.
    """
    by_name = {pair.name: pair for pair in pairs}
    found = {}
    for pair in pairs:
        ending = next((ending for ending in FOLLOWERS if ending in pair.name), "")
        follower = by_name.get(pair.name.replace(ending, FOLLOWERS[ending])) if ending else None
        if follower is None or len(pair.first.shape) != 2 or len(follower.first.shape) != 2:
            continue
        rows, reading = pair.first.shape[0], follower.first.shape[1]
        heads = kv_heads if kv_heads and ".v_proj." in pair.name and rows % kv_heads == 0 and reading % rows == 0 else 0
        if rows != reading and not heads:
            continue
        scales = _estimate_rows(pair, columns.get(pair.name), files)
        if scales is not None:
            read = scales if rows == reading else scales.reshape(heads, 1, -1).repeat(reading // rows, 1).reshape(-1)
            found[pair.name] = follower.name, scales, read
    return found


def _estimate_rows(
    pair: TensorPair, columns: NDArray[np.float64] | None, files: tuple[TensorFiles, TensorFiles]
) -> NDArray[np.float64] | None:
    """Return the factor of each row, by least squares; None if the first rows have none, or one is not above zero."""
    factors: list[NDArray[np.float64]] = []
    begin = 0
    while begin < pair.first.shape[0]:
        end = begin + (max(1, CHUNK_ELEMENTS // pair.first.shape[1]) if begin else FIRST_ROWS)
        end = min(end, pair.first.shape[0])
        ours, theirs = (
            read_rows(side, file, begin, end) for side, file in zip((pair.first, pair.second), files, strict=True)
        )
        if ours is None or theirs is None:
            return None
        ours = ours if columns is None else ours * columns
        with np.errstate(all="ignore"):
            squares = (ours * ours).sum(1)
            factors.append(np.where(squares == 0, 1.0, (ours * theirs).sum(1) / squares))
        if not begin and not (np.abs(factors[0] - 1) > NOISE).mean() > NOISE:
            return None
        begin = end
    scales = np.concatenate(factors)
    return scales if np.isfinite(scales).all() and (scales > 0).all() else None


def read_rows(
    side: TensorLayout | QuantizedWeight, file: TensorFiles, begin: int, end: int
) -> NDArray[np.float64] | None:
    """Return the numbers of some rows, dequantized; None for a dtype without real numbers. Raises as `dequantize_rows`."""
    if isinstance(side, TensorLayout):
        if not can_cast(side.dtype, "F64"):
            return None
        return file.read_numbers(side.cut(0, begin, end), kind="f8")
    with np.errstate(all="ignore"):
        return side.dequantize_rows(file, begin, end).values.astype(np.float64)


def _is_scaled_by_rows(
    pair: TensorPair,
    follower: TensorPair,
    scales: NDArray[np.float64],
    read: NDArray[np.float64],
    columns: NDArray[np.float64] | None,
    files: tuple[TensorFiles, TensorFiles],
) -> bool:
    """Whether the rows of a matrix that is not quantized are scaled, and the columns of its reader undo it."""
    own = np.ones(pair.first.shape[1]) if columns is None else columns
    return _matches(pair, own, -1, files, _tolerance(pair), scales) and _matches(
        follower, 1 / read, -1, files, _tolerance(pair, follower)
    )


def _tolerance(*pairs: TensorPair) -> float:
    """Return the relative difference that rounding of these pairs explains; below zero for dtypes without rounding."""
    dtypes = [side.dtype for pair in pairs for side in (pair.first, pair.second) if isinstance(side, TensorLayout)]
    return max((ROUNDING.get(dtype, -1.0) for dtype in dtypes), default=-1.0)


def _matches(
    pair: TensorPair,
    scales: NDArray[np.float64],
    axis: int,
    files: tuple[TensorFiles, TensorFiles],
    tolerance: float,
    rows: NDArray[np.float64] | None = None,
) -> bool:
    """Whether second = first × scales along an axis (× rows), but for rounding. Reads some rows at a time."""
    first, second = pair.first, pair.second
    if not isinstance(first, TensorLayout) or not isinstance(second, TensorLayout) or first.shape != second.shape:
        return False
    if not (can_cast(first.dtype, "F64") and can_cast(second.dtype, "F64")) or first.shape[axis] != scales.size:
        return False
    factor = scales.reshape([-1 if at == len(first.shape) + axis else 1 for at in range(len(first.shape))])
    step = max(1, CHUNK_ELEMENTS * first.shape[0] * first.itemsize // max(first.nbytes, 1))
    begin = end = 0
    while end < first.shape[0]:
        begin, end = end, min(first.shape[0], end + (step if end else min(step, FIRST_ROWS)))
        ours, theirs = (
            file.read_numbers(side.cut(0, begin, end), kind="f8")
            for side, file in zip((first, second), files, strict=True)
        )
        with np.errstate(all="ignore"):
            expected = ours * (factor[begin:end] if factor.shape[0] > 1 else factor)
            if rows is not None:
                expected *= rows[begin:end, None]
            # subnormal numbers have fixed steps
            allowed = tolerance * np.abs(expected) + (2.0**-23 if "F16" in (first.dtype, second.dtype) else 0)
            if not (np.abs(expected - theirs) <= allowed).all():
                return False
    return True
