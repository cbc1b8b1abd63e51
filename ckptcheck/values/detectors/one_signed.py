"""Finds matrices of the layers whose numbers all have one sign, or one magnitude, by a few short pieces of each.

The first piece of a sound matrix has both signs and many magnitudes, so that one read of it is enough; three pieces are read of any
other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import map_pieces, read_tensor_bytes
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.roles import is_matrix, is_scale, name_pattern
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

LEAST_SIDE = 32
"""Narrower matrices are tables, kernels of convolutions or gates of a few heads."""
PIECE = 256
"""Elements that are read in each of three places."""
LEAST_NONZERO = PIECE // 2
"""Numbers of a piece that are not zero, from which it says something: with more zeros a matrix is sparse or damaged."""
MANY_MAGNITUDES, MIN_SIBLINGS, SIBLINGS_PER_SUSPECT = 16, 3, 3
"""Magnitudes of a piece from which it has many: a weight of 4 bits has 8 in each block, and its blocks differ. Siblings that have
to have many, and how many for each matrix with one."""
TABLE = re.compile(r"embed|position|rel_pos|rope|rotary|A_log|inv_freq|filter|mask", re.I)
"""Names of tables that are no projections."""


def find_one_signed(ckpt: Checkpoint) -> list[str]:
    """Return the matrices of the language model's layers, experts aside, in whose pieces all numbers have one sign.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    suspects = [name for name, values in _read_middles(ckpt).items() if _find_sign(values) is not None]
    return [
        name for name in suspects if len({_find_sign(_read_piece(ckpt, name, quarter)) for quarter in (1, 2, 3)}) == 1
    ]


def find_single_magnitudes(ckpt: Checkpoint) -> list[str]:
    """Return the matrices in whose pieces all numbers have one magnitude, zeros aside, where those of most siblings have many.

    Siblings are the same matrix in other layers: of binary and ternary models they have one too. Raises as `find_one_signed`.
    """
    import numpy as np

    siblings: dict[str, dict[str, NDArray[Any]]] = {}
    for name, values in _read_middles(ckpt).items():
        siblings.setdefault(name_pattern(name), {})[name] = values
    found = []
    for pieces in siblings.values():
        suspects = [name for name, values in pieces.items() if _find_magnitude(values)]
        if not suspects:
            continue
        many = sum(len(np.unique(np.abs(values))) >= MANY_MAGNITUDES for values in pieces.values())
        if many >= max(MIN_SIBLINGS, SIBLINGS_PER_SUSPECT * len(suspects)):
            found += [
                name
                for name in suspects
                if len({_find_magnitude(_read_piece(ckpt, name, quarter)) for quarter in (1, 2, 3)}) == 1
            ]
    return found


@remembered
def _read_middles(ckpt: Checkpoint) -> dict[str, NDArray[Any]]:
    """Read the piece in the middle of every projection, once for all rules."""
    stack = ckpt.components.stack
    if stack is None:
        return {}
    names = [
        name
        for layer, rests in sorted(stack.layers.items())
        for rest in sorted(rests)
        if "{}" not in rest and is_projection(ckpt, name := stack.full_name(layer, rest))
    ]
    return dict(zip(names, map_pieces(ckpt, lambda name: _read_piece(ckpt, name, 2), names), strict=True))


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


def _read_piece(ckpt: Checkpoint, name: str, quarter: int) -> NDArray[Any]:
    """Read the numbers of a matrix behind its first, second or third quarter."""
    import numpy as np

    tensor = ckpt.tensors[name]
    width = FORMATS[tensor.dtype].bits // 8
    elements = tensor.nbytes // width
    raw = read_tensor_bytes(ckpt, name, (elements * quarter // 4 - PIECE // 2) * width, PIECE * width)
    if len(raw) < PIECE * width:
        raise Skip(f"{ckpt.tensor_to_file[name]} shrank while it was being read")
    return decode(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned))


def _find_sign(values: NDArray[Any]) -> int | None:
    """Return 1 or -1 if all numbers of a piece have that sign, zeros aside; None else, and if most are zero."""
    positive, negative = int((values > 0).sum()), int((values < 0).sum())
    if min(positive, negative) or max(positive, negative) < LEAST_NONZERO:
        return None
    return 1 if positive else -1


def _find_magnitude(values: NDArray[Any]) -> float:
    """Return the magnitude that all numbers of a piece have, zeros aside; 0 if they have several, or most are zero."""
    import numpy as np

    magnitudes = np.abs(values)
    # A few numbers rule out nearly every piece.
    if len({*magnitudes[:4].tolist()} - {0.0}) > 1:
        return 0.0
    magnitudes = magnitudes[magnitudes != 0]
    if magnitudes.size < LEAST_NONZERO or not np.isfinite(magnitudes[0]):
        return 0.0
    return float(magnitudes[0]) if (magnitudes == magnitudes[0]).all() else 0.0
