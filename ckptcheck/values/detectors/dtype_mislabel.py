"""Detects BF16 bytes with the label F16, and F16 bytes with the label BF16.

Both dtypes have 16 bits, so the size does not show the mistake. But BF16 has three more exponent bits: read as F16, magnitudes
that span eight powers of two seem to lie within one; the other way round, one power of two seems to be eight. Between the
5th and the 50th percentile the magnitudes of a normal or uniform distribution span 3.4 powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptcheck.values.detectors.byte_compare import map_pieces, read_patterns
from ckptcheck.values.detectors.roles import group_by_kind, is_matrix, is_scale
from ckptcheck.values.dtypes import decode, decode_float64
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

OTHER_DTYPE = {"F16": "BF16", "BF16": "F16"}
SAMPLE_BYTES = 1 << 10
"""Bytes read in each place."""
USUAL_SPAN = (2.0, 7.0)
"""Powers of two that magnitudes of weights usually span from the 5th to the 50th percentile."""
NARROW_SPAN, WIDE_SPAN = 1.0, 9.0
"""With a smaller span BF16 may be labelled F16, with a larger one F16 may be labelled BF16."""
MIN_MAGNITUDES = 64
"""Different magnitudes from which the span of a sample is meaningful: weights rounded to two or three bits are sound in F16 and
span as little. 512 weights of SmolLM2 have at least 153."""
BF16_READ_AS_F16 = (0.25, 2.5)
"""Range in which BF16 magnitudes from 1e-7 to 8 lie when read as F16; weights that really span little are smaller."""
MAX_SIBLINGS = 64
"""Siblings of the usual dtype that are read, spread evenly: there are thousands of experts. All siblings of another
dtype are read."""


def find_mislabelled(ckpt: Checkpoint) -> Iterator[TensorStats]:
    """Yield the matrices whose values have the usual span of weights only if read as the other 16-bit dtype.

    It reads 1 KiB of each matrix, and two more places if that one is suspicious. Yields nothing on the Hub. Raises OSError if
    reading fails.
    """
    if not ckpt.can_sample:
        return
    for kind, siblings in group_by_kind(ckpt).items():
        members = [
            stats for stats in siblings if stats.dtype in OTHER_DTYPE and is_matrix(stats) and not stats.constant
        ]
        if is_scale(kind) or not members:
            continue
        usual_dtype = Counter(stats.dtype for stats in members).most_common(1)[0][0]
        usual_members = [stats for stats in members if stats.dtype == usual_dtype]
        odd_members = [stats for stats in members if stats.dtype != usual_dtype]
        read = odd_members + usual_members[:: -(-len(usual_members) // MAX_SIBLINGS)]
        for stats, is_mislabelled in zip(read, map_pieces(ckpt, partial(_is_mislabelled, ckpt), read), strict=True):
            if is_mislabelled:
                yield stats


def _is_mislabelled(ckpt: Checkpoint, stats: TensorStats) -> bool:
    return all(_reads_better(ckpt, stats, quarter) for quarter in (2, 1, 3))


def _reads_better(ckpt: Checkpoint, stats: TensorStats, quarter: int) -> bool:
    """Whether a sample at this quarter of the tensor is unlike weights, and like weights as the other dtype."""
    import numpy as np

    nbytes = ckpt.tensors[stats.name].nbytes
    if nbytes < 4 * SAMPLE_BYTES:
        return False
    patterns = read_patterns(ckpt, stats.name, nbytes * quarter // 4 // 2 * 2 - SAMPLE_BYTES // 2, SAMPLE_BYTES)
    negative = int(np.count_nonzero(patterns >= 0x8000))
    if not patterns.size / 8 < negative < patterns.size * 7 / 8:
        # Scales and masks have one sign.
        return False
    span = _magnitude_span(stats.dtype, patterns)
    is_odd = span < NARROW_SPAN if stats.dtype == "F16" else span > WIDE_SPAN
    if is_odd and np.unique(patterns & np.uint16(0x7FFF)).size < MIN_MAGNITUDES:
        return False
    if is_odd and stats.dtype == "F16":
        median = float(np.median(decode("F16", patterns & np.uint16(0x7FFF))))
        is_odd = BF16_READ_AS_F16[0] < median < BF16_READ_AS_F16[1]
    return is_odd and USUAL_SPAN[0] < _magnitude_span(OTHER_DTYPE[stats.dtype], patterns) < USUAL_SPAN[1]


def _magnitude_span(dtype: str, patterns: NDArray[Any]) -> float:
    """Return the powers of two from the 5th to the 50th percentile of the nonzero magnitudes; nan if most are zero."""
    import numpy as np

    # Patterns without sign sort in the order of their magnitudes.
    bare = np.sort(patterns & np.uint16(0x7FFF))
    bare = bare[np.searchsorted(bare, 1) :]
    if bare.size < patterns.size / 2:
        return float("nan")
    low, middle = decode_float64(dtype, bare[[bare.size // 20, bare.size // 2]])
    return float(np.log2(middle / low)) if np.isfinite(middle) else float("nan")
