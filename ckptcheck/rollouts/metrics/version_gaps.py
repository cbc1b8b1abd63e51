"""The gap by the weight version of the tokens: where in a response it begins, and whether labels fit the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptcheck.text.formatting import natural_sort_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

EDGE = 16
"""Tokens at the beginning and at the end of a segment whose gap is taken apart."""


@dataclass(frozen=True)
class Segments:
    """Stretches of one weight version, each within a sequence. Arrays have one number a segment, NaN where nothing counts."""

    number: int
    """How many there are."""
    tokens: int
    """Number of compared tokens."""
    abs_mean: float
    """Mean |Δ| of the tokens, in nats."""
    signed_mean: float
    """Mean Δ of the tokens, the trainer's logprob less the engine's."""
    means: NDArray[np.float64] = field(repr=False)
    """Mean |Δ| of each."""
    first: NDArray[np.float64] = field(repr=False)
    """Mean |Δ| of the first `EDGE` tokens of each."""
    last: NDArray[np.float64] = field(repr=False)
    """Mean |Δ| of the last `EDGE` tokens of each."""
    rest: NDArray[np.float64] = field(repr=False)
    """Mean |Δ| of the tokens before those."""

    @property
    def middle(self) -> float:
        """The median of the means, which a few segments do not move; NaN without one."""
        return median(self.means)


@dataclass(frozen=True)
class VersionGaps:
    """The gap of each version, in the order of the versions; and of the segments that end where another version begins."""

    by_version: dict[str, Segments]
    before: dict[tuple[str, str], Segments]
    """(version, the next one in the same sequence) → the segments of the first that the second follows."""


def median(values: NDArray[np.float64]) -> float:
    """Return the median of the numbers that are not NaN; NaN where there is none."""
    import numpy as np

    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def measure_versions(rollouts: Rollouts) -> VersionGaps | None:
    """Return the gap by weight version; None where the tokens have fewer than two. Both sides have logprobs.

    Memory: three float64 a token of a block, and seven a segment.
    """
    import numpy as np

    spans = rollouts.columns.get("version_spans")
    if spans is None or len(np.unique(spans[:, 2])) < 2:
        return None
    spans, owners = _cut_at_sequences(np.asarray(spans), np.asarray(rollouts.starts))
    # Of each segment: count, |Δ| and Δ of all tokens; count and |Δ| of the first, and of the last tokens.
    sums = np.zeros((7, len(spans)))
    for block in rollouts.blocks():
        place = block.token_slice
        low, high = np.searchsorted(spans[:, 0], (place.start, place.stop))
        if low == high:
            continue
        begin, end = (spans[low:high, each] - place.start for each in (0, 1))
        engine, trainer = (block.column(f"{side}_logprobs").astype(np.float64) for side in ("engine", "trainer"))
        with np.errstate(invalid="ignore"):
            gap = trainer - engine
        counted = block.mask & np.isfinite(gap)
        gap = np.where(counted, gap, 0.0)
        total = [np.concatenate([[0.0], np.cumsum(each)]) for each in (counted, np.abs(gap), gap)]
        edges = ((begin, np.minimum(begin + EDGE, end)), (np.maximum(end - EDGE, begin), end))
        for row, (values, (start, stop)) in enumerate(
            [(each, (begin, end)) for each in total] + [(each, edge) for edge in edges for each in total[:2]]
        ):
            sums[row, low:high] = values[stop] - values[start]
    names = [rollouts.metadata.versions[index] for index in spans[:, 2].tolist()]
    by_version: dict[str, list[int]] = {}
    before: dict[tuple[str, str], list[int]] = {}
    for number, name in enumerate(names):
        if sums[0, number]:
            by_version.setdefault(name, []).append(number)
            if number + 1 < len(names) and owners[number] == owners[number + 1] and names[number + 1] != name:
                before.setdefault((name, names[number + 1]), []).append(number)
    if len(by_version) < 2:
        return None
    ordered = sorted(by_version, key=natural_sort_key)
    return VersionGaps(
        {name: _summarize(sums[:, by_version[name]]) for name in ordered},
        {pair: _summarize(sums[:, places]) for pair, places in before.items()},
    )


def _cut_at_sequences(
    spans: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return spans of one sequence each, and the sequence of each. spans: [begin, end, version], sorted, without overlaps."""
    import numpy as np

    begins = np.union1d(spans[:, 0], starts[:-1])
    covering = np.searchsorted(spans[:, 0], begins, "right") - 1
    inside = (covering >= 0) & (begins < spans[covering, 1])
    begins, covering = begins[inside], covering[inside]
    following = np.searchsorted(starts, begins, "right")
    ends = np.minimum(spans[covering, 1], starts[np.minimum(following, len(starts) - 1)])
    return np.stack([begins, ends, spans[covering, 2]], 1), following - 1


def _summarize(sums: NDArray[np.float64]) -> Segments:
    """Return the numbers of some segments. sums: [7, segments], as `measure_versions` adds them up."""
    import numpy as np

    count, total, signed, first_count, first, last_count, last = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        return Segments(
            number=len(count),
            tokens=int(count.sum()),
            abs_mean=float(total.sum() / count.sum()),
            signed_mean=float(signed.sum() / count.sum()),
            means=total / count,
            first=first / first_count,
            last=last / last_count,
            rest=(total - last) / (count - last_count),
        )
