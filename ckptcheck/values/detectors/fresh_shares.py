"""Finds the part of one rank that was drawn anew in a matrix whose other parts are trained.

Training makes some channels large and others small, and the parts of all tensor-parallel ranks show the same ones: the
rows of gate on one of eight ranks have the same large columns as the rows on the other ranks. A part that was drawn is
flat along both axes, and independent of the others. A single head that training never used looks the same (three BERTs
of rxnfp have some), so a part of an attention matrix counts only if it has two heads or more.

The value pass sums the sampled channels of each eighth separately. Only a part that looks drawn is read again.
The variance of a mean of squares is textbook statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.config import HEADS
from ckptcheck.values.channel_sample import RUNS, ChannelSample, choose_channels
from ckptcheck.values.detectors.init_detection import can_look_fresh, match_initialiser
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows
from ckptcheck.values.detectors.roles import FEED_FORWARD, KEYS, QUERIES
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_LENGTH, MIN_CHANNELS = 128, 192
"""With fewer channels to cut into parts, or fewer along which the parts are compared, chance may look like training."""
CHANCE_DEVIATIONS = 4.0
"""Standard deviations that a statistic may be off by chance."""
MIN_AGREEMENT, MIN_AGREEMENT_FOR_EIGHTH = 0.4, 0.5
"""Correlation with the mean of the other trained parts that the median trained part has to have, and the same if one
eighth is drawn."""
MAX_CORRELATION = 0.2
"""Correlation with the mean of the trained parts that a drawn part may have by chance: three standard deviations. In
nine trained models, apart from single heads, the lowest correlation of a flat eighth is 0.33, and of a pair of
neighbours 0.40."""
MIN_TRAINED = 3
"""Eighths that have to be trained."""
MIN_HEADS = 2
"""Heads that a part of an attention matrix has to have: training may leave a single one unchanged."""
MAX_ROWS = 128
"""Rows that are read of a part that looks drawn: a second look, after the samples of the pass."""


class FreshShare(msgspec.Struct, frozen=True):
    """Neighbouring rows, or columns, of a matrix that look drawn."""

    name: str
    axis: int
    """0 for rows, 1 for columns."""
    begin: int
    end: int
    """[begin, end) of these rows or columns."""
    length: int
    """How many of them the matrix has."""
    distribution: str
    """The distribution, as `InitSample` names it."""
    correlation: float
    """The largest correlation of one of its eighths with the trained ones."""
    usual: float
    """The correlation of the median trained eighth with the other trained ones."""


class Cut(msgspec.Struct, frozen=True):
    """A matrix that is cut into eighths along one axis."""

    stats: TensorStats
    sample: ChannelSample
    axis: int
    """0 if its rows are cut, 1 if its columns are."""
    heads: float
    """Heads along that axis."""

    @property
    def along(self) -> NDArray[np.float64]:
        """The mean squares of the sampled channels of the axis."""
        return self.sample.columns if self.axis else self.sample.rows

    @property
    def across(self) -> NDArray[np.float64]:
        """The same of the other axis."""
        return self.sample.rows if self.axis else self.sample.columns

    @property
    def profiles(self) -> NDArray[np.float64]:
        """[eighths, channels of the other axis]: their sums of squares in each eighth; all eighths are equally long."""
        import numpy as np

        return (self.sample.row_sums.T if self.axis else self.sample.column_sums).astype(np.float64)


def find_fresh_shares(ckpt: Checkpoint) -> list[FreshShare]:
    """Return the parts of the layers' matrices, an eighth or more, that look drawn while the rest is trained.

    It uses the samples of the value pass, and reads up to 128 rows of a part that looks drawn. Raises Skip if a file
    shrank since its values were read, OSError if reading fails.
    """
    import numpy as np

    shares = []
    with np.errstate(all="ignore"):
        for cut, flat in _iter_flat(list(_iter_cuts(ckpt))):
            if (share := _find_drawn(ckpt, cut, flat)) is not None:
                shares.append(share)
    return shares


def _iter_cuts(ckpt: Checkpoint) -> Iterator[Cut]:
    """Yield the matrices of the layers that can be judged, along either axis."""
    for stack in ckpt.layout.stacks.values():
        heads_by_role: dict[str, float] = {}
        for layer, roles in sorted(stack.layers.items()):
            for role in sorted(roles):
                if role not in heads_by_role:
                    heads_by_role[role] = _count_heads(ckpt, f"layer.{{}}.{role}")
                # With few heads even the largest part has too few.
                if heads_by_role[role] * (RUNS - MIN_TRAINED) < MIN_HEADS * RUNS:
                    continue
                name = stack.full_name(layer, role)
                stats, sample = ckpt.values.tensors.get(name), ckpt.values.samples.get(name)
                if stats is None or sample is None or stats.dtype not in FLOATS:
                    continue
                for axis in (0, 1):
                    length, channels = stats.shape[axis], stats.shape[1 - axis]
                    if length % RUNS == 0 and length >= MIN_LENGTH and channels >= MIN_CHANNELS:
                        yield Cut(stats, sample, axis, heads_by_role[role])


def _iter_flat(cuts: list[Cut]) -> Iterator[tuple[Cut, NDArray[np.bool_]]]:
    """Yield the matrices in which the channels of some eighths, not of all, have one size; and these eighths.

    All are compared at once: one by one that would take longer than sampling them.
    """
    import numpy as np

    cuts_by_size: dict[tuple[int, int], list[Cut]] = {}
    for cut in cuts:
        cuts_by_size.setdefault((len(cut.along), len(cut.across)), []).append(cut)
    for (number, channels), some in cuts_by_size.items():
        parts = np.stack([cut.along for cut in some]).reshape(len(some), RUNS, -1)
        flat = _is_chance(parts, channels)
        heads = np.array([cut.heads for cut in some])
        for index in np.flatnonzero(flat.any(axis=1) & (heads * flat.sum(axis=1) >= MIN_HEADS * RUNS)):
            cut = some[index]
            # A part that was drawn is flat along the other axis too.
            is_flat = flat[index] & _is_chance(cut.profiles, number // RUNS)
            if is_flat.any() and RUNS - is_flat.sum() >= MIN_TRAINED:
                yield cut, is_flat


def _is_chance(squares: NDArray[np.float64], length: int) -> NDArray[np.bool_]:
    """Whether mean squares, along the last axis, differ no more than those of `length` normal numbers each."""
    import numpy as np

    number = squares.shape[-1]
    limit = 2 / length * (1 + CHANCE_DEVIATIONS * sqrt(2 / number))
    # The variance is at most `limit` times the squared mean. einsum takes a third of the time of var.
    is_chance: NDArray[np.bool_] = (
        np.einsum("...c,...c->...", squares, squares) * number <= (1 + limit) * squares.sum(axis=-1) ** 2
    )
    return is_chance


def _count_heads(ckpt: Checkpoint, role: str) -> float:
    """Return the number of heads of a matrix's channels: infinite in a feed-forward block, 0 if unknown."""
    if KEYS.search(role) or QUERIES.search(role):
        names = ("num_key_value_heads", *HEADS) if KEYS.search(role) else HEADS
        return (ckpt.config.integer(*names) if ckpt.config is not None else None) or 0
    return float("inf") if FEED_FORWARD.search(role) else 0


def _find_drawn(ckpt: Checkpoint, cut: Cut, flat: NDArray[np.bool_]) -> FreshShare | None:
    """Return the part that looks drawn, of a matrix with flat eighths."""
    import numpy as np

    drawn, trained = np.flatnonzero(flat), np.flatnonzero(~flat)
    if drawn[-1] - drawn[0] != len(drawn) - 1 or cut.heads * len(drawn) < MIN_HEADS * RUNS:
        return None
    squares = cut.profiles
    profiles = np.log(np.maximum(squares, 1e-6 * squares.max(1, keepdims=True) + 1e-300))
    profiles -= profiles.mean(1, keepdims=True)
    correlations = _correlate_with_trained(profiles, ~flat)
    usual, correlation = float(np.median(correlations[trained])), float(max(correlations[drawn], key=abs))
    least = MIN_AGREEMENT_FOR_EIGHTH if len(drawn) == 1 else MIN_AGREEMENT
    if not (usual >= least and abs(correlation) <= MAX_CORRELATION) or not can_look_fresh(ckpt, cut.stats):
        return None
    length = cut.stats.shape[cut.axis]
    begin, end = (int(share) * length // RUNS for share in (drawn[0], drawn[-1] + 1))
    values = _read_share(ckpt, cut.stats, cut.axis, begin, end)
    match = match_initialiser(values, float(np.abs(values).max()))
    if match is None:
        return None
    return FreshShare(cut.stats.name, cut.axis, begin, end, length, match[0], correlation, usual)


def _correlate_with_trained(profiles: NDArray[np.float64], trained: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the correlation of the profile of each part with the sum of the trained others."""
    import numpy as np

    products = profiles @ profiles.T
    own = np.diagonal(products)
    with_sum = products @ trained - own * trained
    squared_sum = trained @ products @ trained - trained * (2 * with_sum + own)
    correlations: NDArray[np.float64] = with_sum / np.sqrt(own * squared_sum)
    return correlations


def _read_share(ckpt: Checkpoint, stats: TensorStats, axis: int, begin: int, end: int) -> NDArray[np.float32]:
    """Read some of the rows `begin` to `end` of a matrix, or the columns `begin` to `end` of all rows."""
    import numpy as np

    if axis == 0:
        return read_rows(ckpt, stats, begin + choose_channels(end - begin, MAX_ROWS)).astype(np.float32)
    rows = choose_channels(stats.shape[0], MAX_ROWS)
    return read_rows(ckpt, stats, rows, np.arange(begin, end)).astype(np.float32)
