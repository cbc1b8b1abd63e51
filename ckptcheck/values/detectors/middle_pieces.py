"""Finds projections whose numbers are not spread as trained ones are, by a piece from the middle of each.

- One magnitude: only the signs differ. A sound 4-bit weight has eight magnitudes in each block, and its blocks differ.
- Clipped: of nine trained models, none has a matrix of the layers in which more than one in 6,000 numbers is within a
  thousandth of the largest magnitude. A cast to a format that ends there, or a scale that was too small, leaves a share of
  all numbers at the end of the range.
- Shifted: training leaves the mean of a projection near zero. In the 592 matrices of the layers of eight trained models it is
  at most 0.03 standard deviations away, and in 2,048 neighbouring numbers of one matrix at most 0.1. A 4-bit unpacking
  whose zero point is one step off adds about 0.4; the mean of magnitudes is 1.3.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.byte_compare import map_pieces, read_patterns
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import FEED_FORWARD, KEYS, QUERIES, is_matrix, is_scale, name_pattern
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
MAX_ZEROS = 0.5
"""A piece with a larger share of zeros has no single magnitude: the matrix is sparse or damaged."""
MIN_SHARE, MIN_MAGNITUDES = 0.01, 24
"""Share of the numbers that lies at the largest magnitude of a clipped matrix, and different magnitudes below which it may hold
a few levels by design: ternary weights, or up to five bits, unpacked."""
MIN_SHIFT, MAX_SOUND = 0.2, 0.12
"""Mean, in standard deviations, at or above which a matrix counts as shifted, and at or below which its siblings are sound."""
MOST, MIN_KINDS, MIN_EVERYWHERE = 0.75, 3, 0.06
"""If all matrices were shifted, this share of them lies on one side, in several kinds, by at least so many standard deviations.
Training may shift one kind; it shifts no matrix by more than half of that."""
FUSED = re.compile(r"(^|[._])(qkv_proj|query_key_value|c_attn|Wqkv)\.weight$")
"""Names of matrices that hold queries, keys and values. Usual means of other ones, such as routers, are unknown."""
TABLE = re.compile(r"embed|position|rel_pos|rope|rotary|A_log|inv_freq|filter|mask", re.I)
"""Names of tables that are no projections."""


class MiddlePiece(msgspec.Struct, frozen=True):
    """Statistics of numbers of a matrix."""

    name: str
    mean: float
    deviation: float
    """The standard deviation; NaN where a number is not finite."""
    cut_off: float
    """The share that lies at the largest magnitude of the whole matrix."""
    sign: int
    """1 or -1 if all nonzero ones have that sign; otherwise 0."""
    magnitude: float
    """The magnitude of all nonzero ones; 0 if they have several, or most are zero."""

    @property
    def shift(self) -> float:
        """The mean in standard deviations."""
        return self.mean / self.deviation if self.deviation > 0 else 0.0


def find_single_magnitudes(ckpt: Checkpoint) -> list[str]:
    """Return the layers' projections whose numbers all have one magnitude, while the same matrix has many in most other layers.

    In binary and ternary models the siblings have one magnitude too. Raises Skip if a file has shrunk, OSError if reading fails.
    """
    found = []
    stack = ckpt.components.stack
    for kind in _list_kinds(ckpt):
        if stack is None or not kind[0].name.startswith(f"{stack.prefix}.") or ".experts." in kind[0].name:
            continue
        suspects = [piece for piece in kind if piece.magnitude]
        if _are_exceptions(len(suspects), len(kind) - len(suspects)):
            found += [piece.name for piece in suspects if _read_all_over(ckpt, piece.name).magnitude == piece.magnitude]
    return found


def find_clipped_matrices(ckpt: Checkpoint) -> list[MiddlePiece]:
    """Return the matrices of the layers whose numbers pile up at one largest magnitude. Raises as `find_single_magnitudes`."""
    import numpy as np

    return [
        piece
        for kind in _list_kinds(ckpt)
        for piece in kind
        if piece.cut_off >= MIN_SHARE
        and not ckpt.values.tensors[piece.name].nan + ckpt.values.tensors[piece.name].inf
        and len(np.unique(np.abs(read_piece(ckpt, piece.name, 0.5)))) >= MIN_MAGNITUDES
    ]


def find_shifted_matrices(ckpt: Checkpoint) -> list[MiddlePiece]:
    """Return the projections whose mean is far from zero, if the siblings' means are not, or if nearly all means are.

    Raises as `find_single_magnitudes`.
    """
    kinds = [
        [piece for piece in kind if piece.deviation > 0]
        for kind in _list_kinds(ckpt)
        if any(names.search(name_pattern(kind[0].name)) for names in (FEED_FORWARD, QUERIES, KEYS, FUSED))
    ]
    suspects = everywhere = _find_shift_everywhere(kinds)
    for kind in () if everywhere else kinds:
        shifted = [piece for piece in kind if abs(piece.shift) >= MIN_SHIFT]
        if _are_exceptions(len(shifted), sum(abs(piece.shift) <= MAX_SOUND for piece in kind)):
            suspects = suspects + shifted
    again = (_read_all_over(ckpt, piece.name) for piece in suspects)
    return [piece for piece in again if abs(piece.shift) >= (MIN_EVERYWHERE if everywhere else MIN_SHIFT)]


def _find_shift_everywhere(kinds: list[list[MiddlePiece]]) -> list[MiddlePiece]:
    """Return the matrices that are shifted to one side, if most are; otherwise none."""
    for side in (1, -1):
        shifted = [[piece for piece in kind if side * piece.shift >= MIN_EVERYWHERE] for kind in kinds]
        number = sum(map(len, shifted))
        if sum(map(bool, shifted)) >= MIN_KINDS and number >= MOST * sum(map(len, kinds)):
            return [piece for kind in shifted for piece in kind]
    return []


def _are_exceptions(suspects: int, sound: int) -> bool:
    """Whether so many matrices are exceptions among so many sound siblings, rather than a way to train or to prune."""
    return suspects > 0 and sound >= max(MIN_SIBLINGS, SIBLINGS_PER_SUSPECT * suspects)


@remembered
def _list_kinds(ckpt: Checkpoint) -> list[list[MiddlePiece]]:
    """Return the middles of each repeated projection: of the same matrix in several layers or experts, the first of them."""
    kinds = [
        kind
        for names in ckpt.layout.names_by_template.values()
        if len(names) > 1 and (kind := [name for name in names[:MAX_OF_A_KIND] if is_projection(ckpt, name)])
    ]

    def measure(name: str) -> MiddlePiece:
        return _measure(name, read_piece(ckpt, name, 0.5), ckpt.values.tensors[name].absmax)

    pieces = map_pieces(ckpt, measure, [name for kind in kinds for name in kind])
    return [[next(pieces) for _ in kind] for kind in kinds]


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
    tensor = ckpt.tensors[name]
    width = FORMATS[tensor.dtype].bits // 8
    elements = tensor.nbytes // width
    number = min(number, elements)
    first = min(max(0, round(elements * place) - number // 2), elements - number)
    return decode(tensor.dtype, read_patterns(ckpt, name, first * width, number * width))


def _read_all_over(ckpt: Checkpoint, name: str) -> MiddlePiece:
    """Measure 4,096 numbers from all over a matrix. Raises as `read_piece`."""
    import numpy as np

    return _measure(name, np.concatenate([read_piece(ckpt, name, place, SHORT_PIECE) for place in PLACES]))


def _measure(name: str, values: NDArray[Any], absmax: float = inf) -> MiddlePiece:
    """Measure numbers of a matrix. absmax: its largest magnitude."""
    import numpy as np

    with np.errstate(all="ignore"):
        mean = float(values.sum()) / values.size
        variance = float(values @ values) / values.size - mean * mean
        magnitudes = np.abs(values)
        least, most = values.min(), values.max()
        return MiddlePiece(
            name,
            mean,
            # NaN stays NaN: max() would return the other one.
            variance**0.5 if not variance < 0 else 0.0,
            np.count_nonzero(magnitudes >= absmax * (1 - NEAR)) / values.size,
            int(most > 0 <= least) - int(least < 0 >= most),
            _find_magnitude(magnitudes),
        )


def _find_magnitude(magnitudes: NDArray[Any]) -> float:
    """Return the magnitude of all nonzero numbers; 0 if they have several, or most are zero."""
    import numpy as np

    # A few numbers rule out nearly every piece.
    if len({*magnitudes[:4].tolist()} - {0.0}) > 1:
        return 0.0
    nonzero = magnitudes[magnitudes != 0]
    same = (
        nonzero.size >= (1 - MAX_ZEROS) * magnitudes.size and np.isfinite(nonzero[0]) and (nonzero == nonzero[0]).all()
    )
    return float(nonzero[0]) if same else 0.0
