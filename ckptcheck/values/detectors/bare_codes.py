"""Finds matrices that hold the codes of a quantization as plain numbers, not multiplied by their scales.

The codes of a quantized matrix reach the largest number of their format, because its scales are chosen so: 448 in E4M3, 127 in
INT8. The value pass knows the largest magnitude of every tensor, which clears all matrices of a sound model. Of the few others a
piece is read: each of its numbers is one that the format has. Numbers that were dequantized lie on such a grid too, but end
elsewhere.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.byte_compare import map_pieces
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.middle_pieces import LEAST_SIDE, TABLE, read_piece
from ckptcheck.values.detectors.roles import is_scale
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

CODES = (*FLOATS, "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""dtypes of matrices that may be codes. Those of 8 bits are codes where no scale lies beside them and no config declares one."""
MIN_MATRICES = 4
"""Fewer matrices of one format may be tables."""
MIN_SHARE = 0.9
"""Share of the numbers of a piece that the format has. An adapter that was merged into codes moves some of the small ones; of
the BF16 numbers of a trained matrix, a 16th are numbers of E4M3."""


class CodeFormat(msgspec.Struct, frozen=True):
    """The numbers of a format that a matrix is quantized to."""

    name: str
    lowest: float
    """The least largest magnitude of a matrix of such codes."""
    highest: float
    """The largest number of the format."""
    mantissa: int
    """Bits behind the leading one; 8 for integers, whose steps are all 1."""
    exponent: int
    """The exponent of the smallest normal number, below which all steps are alike."""
    levels: int
    """Different magnitudes that a piece has at least."""
    is_unsigned: bool = False


# A scale that is a power of two puts the largest number of a block anywhere in the last power of two of the format.
UINT8 = CodeFormat("UINT8", 255, 255, 8, 8, 64, is_unsigned=True)
PACKED = CodeFormat("packed 4-bit (bitsandbytes)", 255, 255, 8, 8, 64, is_unsigned=True)
"""bitsandbytes packs two numbers of 4 bits in a byte, and all bytes of a matrix in one column."""
E4M3, FNUZ = CodeFormat("E4M3", 256, 448, 3, -6, 32), CodeFormat("E4M3 FNUZ", 128, 240, 3, -7, 32)
FORMATS = (
    E4M3,
    CodeFormat("E5M2", 32768, 57344, 2, -14, 24),
    CodeFormat("INT8", 127, 128, 8, 8, 32),
    UINT8,
    FNUZ,
    CodeFormat("INT4", 7, 8, 8, 8, 7),
    CodeFormat("UINT4", 15, 15, 8, 8, 12, is_unsigned=True),
    CodeFormat("FP4 (E2M1)", 6, 6, 1, 0, 6),
)
"""Sources: OCP 8-bit Floating Point Specification 1.0, OCP Microscaling Formats 1.0, and the FNUZ formats of AMD's MI300. The
first that fits counts."""
LEAST = min(form.lowest for form in FORMATS)


class BareCodes(msgspec.Struct, frozen=True):
    """The matrices of a checkpoint that are codes of one format."""

    format: CodeFormat
    names: list[str]


@remembered
def find_bare_codes(ckpt: Checkpoint) -> list[BareCodes]:
    """Return the matrices that are codes without their scales, by format.

    It reads a piece only of matrices that end where a format does. Raises Skip if a file has shrunk, OSError if reading
    fails.
    """
    suspects = [
        stats for stats in ckpt.values.tensors.values() if _ends_like_codes(stats) and _has_no_scale(ckpt, stats)
    ]
    if len(suspects) < MIN_MATRICES or not ckpt.can_sample:
        return []
    found: dict[CodeFormat, list[str]] = {}
    for stats, form in zip(suspects, map_pieces(ckpt, partial(_recognise, ckpt), suspects), strict=True):
        if form is not None:
            found.setdefault(form, []).append(stats.name)
    # A matrix of E4M3 that ends below 256 looks like one of the narrower format.
    if E4M3 in found:
        found[E4M3] += found.pop(FNUZ, [])
    return [BareCodes(form, names) for form, names in found.items() if len(names) >= MIN_MATRICES]


def _ends_like_codes(stats: TensorStats) -> bool:
    return (
        stats.absmax >= LEAST  # nearly every matrix of a trained model ends below
        and stats.dtype in CODES
        and any(form.lowest <= stats.absmax <= form.highest for form in FORMATS)
        and len(stats.shape) in (2, 3)
        and (min(stats.shape[-2:]) >= LEAST_SIDE or (stats.shape[1:] == (1,) and stats.shape[0] >= LEAST_SIDE**2))
        and stats.name.endswith(("weight", "proj"))
        and not (stats.constant or is_scale(stats.name) or TABLE.search(stats.name))
    )


def _has_no_scale(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether nothing says that the numbers of a matrix are codes: other rules judge what is declared or has a scale."""
    if stats.name not in ckpt.tensor_to_file or ckpt.quantization is None:
        return stats.name in ckpt.tensor_to_file
    if stats.dtype not in FLOATS and ckpt.quantization.main_declaration is not None:
        return False
    storage = ckpt.quantization.storage_by_module.get(stats.name.removesuffix(".weight"))
    return storage is None or not storage.companions


def _recognise(ckpt: Checkpoint, stats: TensorStats) -> CodeFormat | None:
    """Return the format whose codes a matrix holds; None if it holds other numbers."""
    form = recognise_codes(read_piece(ckpt, stats.name, 0.5), stats.absmax)
    return PACKED if stats.shape[1:] == (1,) and form is UINT8 else form


def recognise_codes(values: NDArray[np.floating], largest: float) -> CodeFormat | None:
    """Return the format whose codes numbers are; None if they are other numbers.

    values: some thousand numbers of a matrix, as float32 or float64. largest: its largest magnitude.
    """
    import numpy as np

    magnitudes = np.abs(values)
    levels = np.unique(magnitudes).size
    for form in FORMATS:
        fits = form.lowest <= largest <= form.highest and levels >= form.levels
        if fits and form.is_unsigned == (values.min() >= 0) and _share_of_codes(magnitudes, form) >= MIN_SHARE:
            return form
    return None


def _share_of_codes(magnitudes: NDArray[np.floating], form: CodeFormat) -> float:
    """Return the share of numbers that a format has."""
    import numpy as np

    with np.errstate(all="ignore"):
        _, exponents = np.frexp(np.where(np.isfinite(magnitudes), magnitudes, inf))
        steps = np.ldexp(1.0, np.maximum(exponents - 1, form.exponent) - form.mantissa)
        return float(np.mean(magnitudes / steps % 1 == 0))
