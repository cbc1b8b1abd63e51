"""Sketches the values of a tensor: mean, spread and quantiles, from a sample that the value pass takes on its way.

A sample is runs of neighbouring elements, spread evenly. The pass has just read them, so they are still in the cache.
The samples of all tensors share a budget, so more tensors make each sample smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.values.dtypes import FORMATS, decode_float64

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SKETCHED = frozenset(
    name for name, form in FORMATS.items() if not form.integer and not form.packed and form.signed and name != "C64"
)
"""The dtypes whose elements are real numbers that share no byte."""
SHARES = (0.01, 0.25, 0.5, 0.75, 0.99)
"""The quantiles of a sketch."""
MOST_ELEMENTS, LEAST_ELEMENTS, ALL_ELEMENTS = 4096, 128, 1 << 23
"""Elements of one tensor that are sampled, and of all tensors together."""
TOGETHER = 32
"""Neighbouring elements of a run: one or two cache lines."""
BLOCK = 1 << 20
"""Elements that are sketched at a time."""


class Sketch(msgspec.Struct, frozen=True):
    """Statistics of a sample of a tensor. The numbers are as stored, without scales; only finite ones count."""

    elements: int
    """How many finite elements the sample has."""
    mean: float
    std: float
    """The standard deviation."""
    quantiles: tuple[float, ...]
    """The quantiles, in the order of SHARES."""
    zeros: float
    """The share of elements that are zero."""

    @property
    def rms(self) -> float:
        """The root mean square: the norm of the tensor, divided by the square root of its elements."""
        return sqrt(self.mean**2 + self.std**2)


def choose_sample_size(tensors: int) -> int:
    """Return how many elements of each tensor are sampled.

    >>> choose_sample_size(300), choose_sample_size(20_000), choose_sample_size(140_000)
    (4096, 416, 128)
    """
    return min(MOST_ELEMENTS, max(LEAST_ELEMENTS, ALL_ELEMENTS // max(tensors, 1) // TOGETHER * TOGETHER))


def take_sample(raw: NDArray[np.uint8], dtype: str, number: int) -> bytes:
    """Return about `number` elements of (a part of) a tensor, in runs that are spread evenly.

    raw: the bytes of a whole number of elements.
    """
    import numpy as np

    patterns = raw.view(FORMATS[dtype].unsigned)
    if patterns.size <= max(number, TOGETHER):
        return raw.tobytes()
    runs = max(number // TOGETHER, 1)
    starts = np.arange(runs) * (patterns.size - TOGETHER) // max(runs - 1, 1)
    return bytes(patterns[(starts[:, None] + np.arange(TOGETHER)).ravel()])


def sketch_samples(samples: Mapping[str, tuple[str, bytes]]) -> dict[str, Sketch]:
    """Return the sketch of every tensor with a finite element. samples: name → dtype and bytes of the sample."""
    import numpy as np

    groups: dict[tuple[str, int], list[str]] = {}
    for name, (dtype, sample) in samples.items():
        groups.setdefault((dtype, len(sample)), []).append(name)
    found: dict[str, Sketch] = {}
    for (dtype, nbytes), names in groups.items():
        step = max(BLOCK // max(nbytes, 1), 1)
        for begin in range(0, len(names) if nbytes else 0, step):
            part = names[begin : begin + step]
            patterns = np.frombuffer(b"".join(samples[name][1] for name in part), FORMATS[dtype].unsigned)
            values = decode_float64(dtype, patterns).reshape(len(part), -1)
            found.update(zip(part, _sketch_rows(values), strict=True))
    return {name: found[name] for name in samples if name in found and found[name].elements}


def _sketch_rows(values: NDArray[Any]) -> Iterator[Sketch]:
    """Yield the sketch of each row."""
    import numpy as np

    finite = np.isfinite(values)
    if not finite.all():
        for row, is_finite in zip(values, finite, strict=True):
            kept = row[is_finite]
            yield from _sketch_rows(kept[None]) if kept.size else (Sketch(0, 0.0, 0.0, (), 0.0),)
        return
    number = values.shape[1]
    places = [round(share * (number - 1)) for share in SHARES]
    with np.errstate(over="ignore", invalid="ignore"):  # of F64 a square can be too large
        columns = (
            values.mean(axis=1),
            values.std(axis=1),
            np.sort(values, axis=1)[:, places],
            (values == 0).mean(axis=1),
        )
    for mean, std, quantiles, zeros in zip(*(column.tolist() for column in columns), strict=True):
        yield Sketch(number, mean, std, tuple(quantiles), zeros)
