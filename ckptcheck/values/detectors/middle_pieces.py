"""Reads a piece from the middle of each projection, once for all rules on the distribution of its numbers."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import map_pieces, read_tensor_bytes
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import is_matrix, is_scale
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

PIECE = 2048
"""Numbers that are read from the middle of a matrix."""
MAX_OF_A_KIND = 256
"""Matrices of one kind that are read: there are thousands of experts."""
LEAST_SIDE = 32
"""Narrower matrices are tables, kernels of convolutions or gates of a few heads."""
PLACES, SHORT_PIECE = tuple((number + 0.5) / 16 for number in range(16)), 256
"""The places at which a suspicious matrix is read again, and the numbers at each."""
MIN_SIBLINGS, SIBLINGS_PER_SUSPECT = 3, 3
"""Sound siblings that make a matrix an exception, and how many each such matrix needs."""
NEAR = 1e-3
"""A number this near to the largest magnitude of its matrix, as a share of it, counts as clipped."""
TABLE = re.compile(r"embed|position|rel_pos|rope|rotary|A_log|inv_freq|filter|mask", re.I)
"""Names of tables that are no projections."""


class MiddlePiece(msgspec.Struct, frozen=True):
    """Statistics of the numbers in the middle of a matrix."""

    number: int
    """How many were read."""
    mean: float
    deviation: float
    """The standard deviation; NaN where a number is not finite."""
    zeros: int
    """How many are zero."""
    cut_off: int
    """How many lie at the largest magnitude of the whole matrix."""
    sign: int
    """1 or -1 if all nonzero ones have that sign; otherwise 0."""
    magnitude: float
    """The magnitude of all nonzero ones; 0 if they have several."""


@remembered
def read_middle_pieces(ckpt: Checkpoint) -> dict[str, MiddlePiece]:
    """Return the statistics of each projection's middle: in the language model's layers, and in any other repeated
    module.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    names = dict.fromkeys(list_layer_projections(ckpt))
    for kind in list_kinds(ckpt):
        names |= dict.fromkeys(kind)
    tensors = ckpt.values.tensors

    def measure(name: str) -> MiddlePiece:
        return measure_piece(read_piece(ckpt, name, 0.5), tensors[name].absmax)

    return dict(zip(names, map_pieces(ckpt, measure, list(names)), strict=True))


@remembered
def list_layer_projections(ckpt: Checkpoint) -> list[str]:
    """Return the projections of the language model's layers, experts aside."""
    stack = ckpt.components.stack
    if stack is None:
        return []
    return [
        name
        for layer, rests in sorted(stack.layers.items())
        for rest in sorted(rests)
        if "{}" not in rest and is_projection(ckpt, name := stack.full_name(layer, rest))
    ]


@remembered
def list_kinds(ckpt: Checkpoint) -> list[list[str]]:
    """Return the first members of each repeated projection: the same matrix in several layers or experts."""
    return [
        kind
        for names in ckpt.layout.names_by_template.values()
        if len(names) > 1 and (kind := [name for name in names[:MAX_OF_A_KIND] if is_projection(ckpt, name)])
    ]


def is_projection(ckpt: Checkpoint, name: str) -> bool:
    """Whether a tensor is a matrix of plain numbers that a model multiplies by, and no table, scale or constant."""
    stats = ckpt.values.tensors.get(name)
    return (
        stats is not None
        and name in ckpt.tensor_to_file
        and name.endswith(("weight", "proj"))
        and stats.dtype in FLOATS
        and is_matrix(stats)
        and min(stats.shape[-2:]) >= LEAST_SIDE
        and not (stats.constant or is_scale(name) or TABLE.search(name))
    )


def read_piece(ckpt: Checkpoint, name: str, place: float, number: int = PIECE) -> NDArray[Any]:
    """Read so many numbers of a matrix as float32 or float64; all if it has fewer.

    place: where the middle of the piece lies, 0 at the start of the matrix and 1 at its end.
    Raises Skip if the file has shrunk, OSError if reading fails.
    """
    import numpy as np

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    width = form.bits // 8
    elements = tensor.nbytes // width
    number = min(number, elements)
    first = min(max(0, round(elements * place) - number // 2), elements - number)
    raw = read_tensor_bytes(ckpt, name, first * width, number * width)
    if len(raw) < number * width:
        raise Skip(f"{ckpt.tensor_to_file[name]} shrank while it was being read")
    return decode(tensor.dtype, np.frombuffer(raw, form.unsigned))


def read_all_over(ckpt: Checkpoint, name: str) -> NDArray[Any]:
    """Read 4,096 numbers from all over a matrix. Raises as `read_piece`."""
    import numpy as np

    return np.concatenate([read_piece(ckpt, name, place, SHORT_PIECE) for place in PLACES])


def are_exceptions(suspects: int, sound: int) -> bool:
    """Whether so many matrices are exceptions among so many sound siblings, rather than a way to train or to prune."""
    return suspects > 0 and sound >= max(MIN_SIBLINGS, SIBLINGS_PER_SUSPECT * suspects)


def measure_piece(values: NDArray[Any], absmax: float = inf) -> MiddlePiece:
    """Measure numbers of a matrix. absmax: its largest magnitude."""
    import numpy as np

    with np.errstate(all="ignore"):
        mean = float(values.sum()) / values.size
        variance = float(values @ values) / values.size - mean * mean
        magnitudes = np.abs(values)
        least, most = values.min(), values.max()
        return MiddlePiece(
            values.size,
            mean,
            # NaN stays NaN: max() would return the other one.
            variance**0.5 if not variance < 0 else 0.0,
            values.size - int(np.count_nonzero(values)),
            int(np.count_nonzero(magnitudes >= absmax * (1 - NEAR))),
            int(most > 0 <= least) - int(least < 0 >= most),
            _find_magnitude(magnitudes),
        )


def _find_magnitude(magnitudes: NDArray[Any]) -> float:
    """Return the magnitude of all nonzero numbers; 0 if they have several."""
    import numpy as np

    # A few numbers rule out nearly every piece.
    if len({*magnitudes[:4].tolist()} - {0.0}) > 1:
        return 0.0
    nonzero = magnitudes[magnitudes != 0]
    same = nonzero.size and np.isfinite(nonzero[0]) and (nonzero == nonzero[0]).all()
    return float(nonzero[0]) if same else 0.0
