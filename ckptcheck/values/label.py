"""Tells BF16 bytes under the label F16, and F16 bytes under the label BF16.

Both have 16 bits, so no size betrays it. But BF16 spends three bits more on the exponent: read as F16, magnitudes that
spread over eight powers of two seem to lie within one, and read the other way round one power of two seems eight. Between
the 5th and the 50th percentile the magnitudes of a normal or uniform distribution span 3.4 powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.values.compare import read
from ckptcheck.values.dtypes import decode
from ckptcheck.values.roles import is_matrix, is_scale, template
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

OTHER = {"F16": "BF16", "BF16": "F16"}
SAMPLE = 1 << 10
"""Bytes looked at in each place."""
LIKELY = (2.0, 7.0)
"""Powers of two that the magnitudes of weights span from the 5th to the 50th percentile."""
NARROW, WIDE = 1.0, 9.0
"""Fewer than this and BF16 may be labelled F16, more and F16 may be labelled BF16."""
FEWEST = 64
"""Different magnitudes in a sample below which its spread says nothing: weights rounded to two or three bits, sound in F16,
are as narrow. 512 weights of SmolLM2 have 153 at least."""
AS_F16 = (0.25, 2.5)
"""Where BF16 magnitudes from 1e-7 to 8 lie when read as F16; weights that are narrow in truth are smaller."""
FAMILY = 64
"""Siblings of one dtype that are looked at, spread evenly; all whose dtype differs from that of most siblings."""


def mislabelled(ckpt: Checkpoint) -> Iterator[TensorStats]:
    """Yield the matrices whose bytes are spread as weights are only when read as the other dtype of 16 bits.

    Reads 1 KiB of each, in two further places where that one shows it. Raises OSError where reading fails. Nothing is
    looked for on the Hub.
    """
    if ckpt.source.local is None:
        return
    families: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if name in ckpt.holders and stats.dtype in OTHER and is_matrix(stats) and not stats.constant:
            families.setdefault(template(name), []).append(stats)
    for members in families.values():
        usual = Counter(stats.dtype for stats in members).most_common(1)[0][0]
        alike = [stats for stats in members if stats.dtype == usual]
        odd = [stats for stats in members if stats.dtype != usual]
        for stats in odd + alike[:: -(-len(alike) // FAMILY)]:
            if not is_scale(stats.name) and all(_reads_better(ckpt, stats, place) for place in (2, 1, 3)):
                yield stats


def _reads_better(ckpt: Checkpoint, stats: TensorStats, quarter: int) -> bool:
    """Whether a sample at this quarter of the tensor is unlike weights, and like them as the other dtype."""
    import numpy as np

    nbytes = ckpt.tensors[stats.name].nbytes
    if nbytes < 4 * SAMPLE:
        return False
    raw = read(ckpt, stats.name, nbytes * quarter // 4 // 2 * 2 - SAMPLE // 2, SAMPLE)
    patterns = np.frombuffer(raw, "<u2")
    negative = int(np.count_nonzero(patterns >= 0x8000))
    if not patterns.size / 8 < negative < patterns.size * 7 / 8:
        return False  # scales and masks have one sign
    span = _span(stats.dtype, patterns)
    odd = span < NARROW if stats.dtype == "F16" else span > WIDE
    if odd and np.unique(patterns & np.uint16(0x7FFF)).size < FEWEST:
        return False
    if odd and stats.dtype == "F16":
        usual = float(np.median(decode("F16", patterns & np.uint16(0x7FFF))))
        odd = AS_F16[0] < usual < AS_F16[1]
    return odd and LIKELY[0] < _span(OTHER[stats.dtype], patterns) < LIKELY[1]


def is_swapped(ckpt: Checkpoint, name: str) -> bool:
    """Whether a tensor is spread as weights are only with the bytes of each number in the other order; False on the Hub.

    Reads 1 KiB in three places. Raises OSError where reading fails.
    """
    import numpy as np

    dtype, nbytes = ckpt.tensors[name].dtype, ckpt.tensors[name].nbytes
    if dtype not in OTHER or nbytes < 4 * SAMPLE or ckpt.source.local is None:
        return False
    for quarter in (1, 2, 3):
        patterns = np.frombuffer(read(ckpt, name, nbytes * quarter // 4 // 2 * 2 - SAMPLE // 2, SAMPLE), "<u2")
        if _span(dtype, patterns) < WIDE or not LIKELY[0] < _span(dtype, patterns.byteswap()) < LIKELY[1]:
            return False
    return True


def _span(dtype: str, patterns: NDArray[Any]) -> float:
    """Powers of two between the 5th and the 50th percentile of the magnitudes other than zero; nan where few are."""
    import numpy as np

    bare = np.sort(patterns & np.uint16(0x7FFF))  # patterns without sign are in the order of their magnitudes
    bare = bare[np.searchsorted(bare, 1) :]
    if bare.size < patterns.size / 2:
        return float("nan")
    low, middle = decode(dtype, bare[[bare.size // 20, bare.size // 2]]).astype(np.float64)
    return float(np.log2(middle / low)) if np.isfinite(middle) else float("nan")
