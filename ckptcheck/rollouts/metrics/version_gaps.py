"""The gap by the weight version of the tokens: where in a response it begins, and whether labels fit the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass(frozen=True)
class Spans:
    """Where weight versions begin and end, cut at the sequences."""

    bounds: NDArray[np.int64] = field(repr=False)
    """int64 [spans, 2]: the tokens [begin, end) of each."""
    versions: NDArray[np.int64] = field(repr=False)
    """int64 [spans]: the version of each, by its place in `names`."""
    owners: NDArray[np.int64] = field(repr=False)
    """int64 [spans]: the sequence of each."""
    names: list[str]
    """The versions, as the metadata list them."""

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """int64 [4, spans]: where each begins, where its first `EDGE` tokens end, where its last ones begin, where it ends."""
        import numpy as np

        begin, end = self.bounds.T
        return np.stack([begin, np.minimum(begin + EDGE, end), np.maximum(end - EDGE, begin), end])

    @cached_property
    def cuts(self) -> NDArray[np.int64]:
        """int64, sorted: all edges, where `compute_metrics` has to cut its sums."""
        import numpy as np

        return np.unique(self.edges)


def find_spans(rollouts: Rollouts) -> Spans | None:
    """Return the spans of versions; None where there are fewer than two versions. The columns are well formed."""
    import numpy as np

    column = rollouts.columns.get("version_spans")
    if column is None or not len(column) or (column[:, 2] == column[0, 2]).all():
        return None
    spans, starts, names = np.asarray(column), np.asarray(rollouts.starts), rollouts.metadata.versions
    # A name may be listed twice.
    places: dict[str, int] = {}
    numbers = np.array([places.setdefault(name, place) for place, name in enumerate(names)])
    begins = np.union1d(spans[:, 0], starts[:-1])
    covering = np.searchsorted(spans[:, 0], begins, "right") - 1
    inside = (covering >= 0) & (begins < spans[covering, 1])
    begins, covering = begins[inside], covering[inside]
    following = np.searchsorted(starts, begins, "right")
    ends = np.minimum(spans[covering, 1], starts[np.minimum(following, len(starts) - 1)])
    return Spans(np.stack([begins, ends], 1), numbers[spans[covering, 2]], following - 1, names)


def measure_versions(spans: Spans, pieces: NDArray[np.float64]) -> VersionGaps | None:
    """Return the gap by weight version; None where the compared tokens have fewer than two.

    pieces: the sums of `LogprobMetrics` between the cuts of the spans.
    """
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        whole = np.concatenate([np.zeros((3, 1)), np.cumsum(pieces, 1)], 1)
        begin, first, last, end = (whole[:, np.searchsorted(spans.cuts, edge)] for edge in spans.edges)
        # count, |Δ| and Δ of all tokens; count and |Δ| of the first, and of the last tokens
        sums = np.concatenate([end - begin, (first - begin)[:2], (end - last)[:2]])
    counted = sums[0] > 0
    by_version = {spans.names[key]: each for key, each in _group(spans.versions[counted], sums[:, counted])}
    if len(by_version) < 2:
        return None
    one, other = spans.versions[:-1], spans.versions[1:]
    changes = counted[:-1] & (spans.owners[1:] == spans.owners[:-1]) & (one != other)
    pairs = _group((one * len(spans.names) + other)[changes], sums[:, :-1][:, changes])
    return VersionGaps(
        {name: by_version[name] for name in sorted(by_version, key=natural_sort_key)},
        {(spans.names[key // len(spans.names)], spans.names[key % len(spans.names)]): each for key, each in pairs},
    )


def _group(keys: NDArray[np.int64], sums: NDArray[np.float64]) -> Iterator[tuple[int, Segments]]:
    """Yield each key and the numbers of its segments. keys: [segments]; sums: [7, segments]."""
    import numpy as np

    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    found, begins = np.unique(keys[order], return_index=True)
    for key, places in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
        yield key, _summarize(sums[:, places])


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
