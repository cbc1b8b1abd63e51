"""Verifies rotations of the residual stream: QuaRot's and SpinQuant's R1, which all matrices undo, and their R2, which v and o do.

They fold each norm into the matrices that read it, and multiply the embedding and what writes the stream by an orthogonal matrix,
what reads it by its inverse (llmcompressor modifiers/transform/spinquant; QuaRot's fuse_layer_norms and rotate_model, which take
the mean from each row of the embedding, too). Nobody keeps the matrix, and none is needed: what a matrix makes of rows of the
embedding is the same before and after, W·N·Eᵀ for a reader with its norm N, and E·W for a writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.compare.matching.quantized.distance import CHUNK_ELEMENTS, OVERDONE_ERROR
from ckptcheck.compare.matching.smoothing import OTHER_INPUT, iter_norm_readers, read_rows
from ckptcheck.compare.matching.tensor_files import TensorFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]
    Sides = tuple[Matrix, Matrix]

PROBES = 64
"""Rows of the embedding that are sent through each matrix; as many as agree by chance for no two matrices."""
BLOCK = 64
"""Rows or columns that are judged together: a part of a matrix that is not rotated shows in one of them."""
PLAIN_ERROR = 0.05
"""Relative error that rounding to 16 bits explains: embedding, norm and matrix are rounded, each by 2^-9."""
LEAST_SHARE = 0.25
"""Share of the matrices that follow a rotation at least: with norms that were not folded in, still all that write the stream."""
LEAST_CHANGE = 0.5
"""Relative change of the embedding from which it may be rotated; a random rotation makes 1.4."""


class Rotation(msgspec.Struct):
    """What was rotated with the embedding."""

    # Names of the matrices that follow, and of the tensors that differ only by the rotation.
    consistent: list[str] = msgspec.field(default_factory=list)
    explained: set[str] = msgspec.field(default_factory=set)
    # Matrix that does not follow → why.
    broken: dict[str, str] = msgspec.field(default_factory=dict)


def find_rotation(
    pairs: Sequence[TensorPair],
    files: tuple[TensorFiles, TensorFiles],
    *,
    embedding: str,
    head: str,
    is_centred: bool,
    heads: int | None,
    is_declared: bool,
) -> Rotation | None:
    """Return what follows the rotation of the embedding; None if it is not rotated, or hardly a matrix follows.

    Raises as `QuantizedWeight.dequantize_rows`.

    Args:
        pairs: all pairs that are compared.
        files: of the first and of the second side.
        embedding: its plain name.
        head: plain name of the LM head.
        is_centred: norms multiply by 1 + weight.
        heads: number of attention heads.
        is_declared: a side has a transform_config, by which engines rotate activations.
    """
    by_name = {pair.name: pair for pair in pairs}
    table = by_name.get(embedding)
    probes = _read_probes(table, files) if table is not None else None
    if table is None or probes is None:
        return None
    rotation = Rotation(explained={table.name})
    width = table.first.shape[1]
    norms: dict[str, Sides] = {}
    for norm, readers in iter_norm_readers(pairs, head=head, is_tied=False):
        weights = [read_rows(side, file, 0, width) for side, file in zip((norm.first, norm.second), files, strict=True)]
        ours, theirs = weights
        if ours is None or theirs is None:
            continue
        norms.update((reader.name, (ours + is_centred, theirs + is_centred)) for reader in readers)
        if all(pair.first.shape[-1] == width for pair in readers):
            rotation.explained.add(norm.name)
    turned: dict[str, Sides] = {}
    for pair in pairs:
        if len(pair.first.shape) != 2 or pair is table or width not in pair.first.shape:
            continue
        is_writer = OTHER_INPUT.search(pair.name) is not None and pair.first.shape[0] == width
        if not is_writer and pair.first.shape[1] != width:
            continue
        ones = np.ones(width)
        own = norms.get(pair.name, (ones, ones))
        sent = [probe if is_writer else probe * norm for probe, norm in zip(probes, own, strict=True)]
        ours, theirs = (
            np.concatenate(list(_send(side, file, probe, is_writer)), axis=1)
            for side, file, probe in zip((pair.first, pair.second), files, sent, strict=True)
        )
        limit = PLAIN_ERROR if _is_plain(pair) else OVERDONE_ERROR
        if _agree(ours, theirs, limit):
            rotation.consistent.append(pair.name)
        elif _error(ours @ ours.T, theirs @ theirs.T) <= limit:
            turned[pair.name] = ours, theirs
        else:
            rotation.broken[pair.name] = "not rotated with it"
    _judge_turned(rotation, turned, by_name, heads=heads, is_declared=is_declared)
    if len(rotation.consistent) < LEAST_SHARE * (len(rotation.consistent) + len(rotation.broken)):
        return None  # the embedding alone is another one
    rotation.explained.update(rotation.consistent)
    return rotation


def _judge_turned(
    rotation: Rotation,
    turned: dict[str, Sides],
    by_name: dict[str, TensorPair],
    *,
    heads: int | None,
    is_declared: bool,
) -> None:
    """Judge matrices that are rotated on their other side too: v by what o undoes, others by what an engine undoes.

    turned: matrix → what it makes of the probes on both sides [probes, other side].
    """
    for name in turned:
        is_undone, partner = is_declared, ""
        for mine, other in ((".v_proj.", ".o_proj."), (".o_proj.", ".v_proj.")):
            partner = name.replace(mine, other) if mine in name else partner
        if partner in turned and heads:
            values, outputs = sorted((name, partner), key=lambda each: ".o_proj." in each)
            products = [_pass_heads(turned[values][side], turned[outputs][side], heads) for side in (0, 1)]
            limit = PLAIN_ERROR if _is_plain(by_name[name]) and _is_plain(by_name[partner]) else OVERDONE_ERROR
            is_undone = _agree(products[0], products[1], 2 * limit)
        if is_undone:
            rotation.consistent.append(name)
        else:
            side = "outputs" if partner and ".v_proj." in name else "inputs or outputs"
            rotation.broken[name] = f"with rotated {side}, which nothing undoes"


def _pass_heads(values: Matrix, outputs: Matrix, heads: int) -> Matrix:
    """Return what each attention head makes of the probes [probes, heads · probes]; heads may share values."""
    width = outputs.shape[1] // heads
    shared = max(1, heads * width // values.shape[1])
    parts = []
    for head in range(heads):
        begin = head // shared * width
        parts.append(outputs[:, head * width : (head + 1) * width] @ values[:, begin : begin + width].T)
    return np.concatenate(parts, axis=1)


def _read_probes(table: TensorPair, files: tuple[TensorFiles, TensorFiles]) -> Sides | None:
    """Return rows of the embedding on both sides [probes, width], without their mean where the other side has none.

    None if their scalar products differ, so that no rotation explains the difference, or if they hardly differ.
    """
    if len(table.first.shape) != 2 or table.first.shape != table.second.shape:
        return None
    number = table.first.shape[0]
    step = max(1, number // PROBES)
    parts: list[Matrix] = []
    for side, file in zip((table.first, table.second), files, strict=True):
        rows = [read_rows(side, file, at, at + 1) for at in range(0, number, step)][:PROBES]
        if any(row is None for row in rows):
            return None
        parts.append(np.concatenate([row for row in rows if row is not None]))
    ours, theirs = parts
    if _error(ours, theirs) < LEAST_CHANGE:
        return None
    for first in (ours, ours - ours.mean(1, keepdims=True)):
        for second in (theirs, theirs - theirs.mean(1, keepdims=True)):
            if _error(first @ first.T, second @ second.T) <= PLAIN_ERROR:
                return first, second
    return None


def _send(side: object, file: TensorFiles, probes: Matrix, is_writer: bool) -> Iterator[Matrix]:
    """Yield what a matrix makes of the probes: [probes, some rows] of a reader, [probes, inputs] of a writer at once."""
    shape: tuple[int, int] = side.shape  # type: ignore[attr-defined]
    step = max(1, CHUNK_ELEMENTS // shape[1])
    total = np.zeros((len(probes), shape[1]))
    for begin in range(0, shape[0], step):
        rows = read_rows(side, file, begin, min(begin + step, shape[0]))  # type: ignore[arg-type]
        if rows is None:
            rows = np.full((min(step, shape[0] - begin), shape[1]), np.nan)
        if is_writer:
            total += probes[:, begin : begin + step] @ rows
        else:
            yield probes @ rows.T
    if is_writer:
        yield total


def _agree(ours: Matrix, theirs: Matrix, limit: float) -> bool:
    """Whether two matrices are equal but for rounding, in every block of columns."""
    return all(
        _error(ours[:, at : at + BLOCK], theirs[:, at : at + BLOCK]) <= limit for at in range(0, ours.shape[1], BLOCK)
    )


def _error(ours: Matrix, theirs: Matrix) -> float:
    """Return the relative difference of two matrices; infinite where one is not finite."""
    with np.errstate(all="ignore"):
        length = float(np.linalg.norm(ours))
        error = float(np.linalg.norm(ours - theirs)) / length if length else float(np.any(theirs))
    return error if np.isfinite(error) else np.inf


def _is_plain(pair: TensorPair) -> bool:
    return isinstance(pair.first, TensorLayout) and isinstance(pair.second, TensorLayout)
