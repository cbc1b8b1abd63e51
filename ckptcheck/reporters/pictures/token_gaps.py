"""Draws the tokens of rollouts: how far apart both sides' logprobs are, how often, and where in the response."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Histogram, Series, choose_scale
from ckptcheck.rollouts.metrics.logprob_metrics import EXPONENT_BOUND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
    from ckptcheck.rollouts.rollouts import Block

BINS = 201
WIDEST = 6.0
"""Largest |difference| of the histogram; the outer bins count larger ones."""
DENSITY_BINS = 32
"""Rows and columns of the density."""
LOWEST = -20.0
"""Logprobs below this one enter the lowest bin of the density."""
PLACES = 48
"""Most points along the response."""


class TokenSums(NamedTuple):
    """What the pictures show of the compared tokens."""

    gap_edges: NDArray[Any]
    """Float [bins + 1]: of trainer - engine, in nats."""
    gaps: NDArray[Any]
    """Float [bins]: the tokens between two edges; the outer bins have those beyond."""
    logprob_edges: NDArray[Any]
    """Float [DENSITY_BINS + 1]: of the logprobs of both sides."""
    logprobs: NDArray[Any]
    """Int [DENSITY_BINS, DENSITY_BINS]: the tokens by logprob of the trainer and of the engine; the lowest have those below."""
    width: int
    """Places in the response that are one point."""
    points: NDArray[Any]
    """Float [3, points]: at each point the tokens, and the sums of k3 and of |trainer - engine|."""


@remembered
def sum_tokens(evidence: RolloutEvidence) -> TokenSums:
    """Sum up the compared tokens, of which there is at least one."""
    import numpy as np

    moments = evidence.metrics.moments
    least, most, places = moments.logprob_min, max(moments.logprob_max, 0.0), moments.places
    # an odd number of bins, so that 0 lies in the middle of one
    bins = 2 * min(max(isqrt(evidence.metrics.tokens), 10), BINS // 2) + 1
    widest = min(WIDEST, max(evidence.metrics.abs_max, 1e-6))
    gap_edges = np.linspace(-widest, widest, bins + 1)
    logprob_edges = np.linspace(min(max(least, LOWEST), most - 1e-3), most, DENSITY_BINS + 1)
    width = (places - 1) // PLACES + 1
    firsts = range(0, places, width)
    gaps, logprobs, points = np.zeros(bins), np.zeros(DENSITY_BINS**2, np.int64), np.zeros((3, len(firsts)))
    for block, chosen, q, p in _compared_tokens(evidence):
        r = p - q
        gaps += np.bincount(find_bins(r, gap_edges), minlength=bins)
        cells = find_bins(p, logprob_edges) * DENSITY_BINS + find_bins(q, logprob_edges)
        logprobs += np.bincount(cells, minlength=DENSITY_BINS**2)
        ratio = np.minimum(-r if evidence.metrics.sampled_by == "trainer" else r, EXPONENT_BOUND)
        begins, counts, _, at = block.split(chosen, firsts[: int(block.lengths.max()) // width + 1])
        at = np.concatenate((np.arange(len(firsts)), at))  # goes on from the sums of the blocks before
        summed = (np.add.reduceat(each, begins) for each in (np.expm1(ratio) - ratio, np.abs(r)))
        for row, more in enumerate((counts, *summed)):
            points[row] = np.bincount(at, np.concatenate((points[row], more)))
    return TokenSums(gap_edges, gaps, logprob_edges, logprobs.reshape(DENSITY_BINS, DENSITY_BINS), width, points)


def _compared_tokens(evidence: RolloutEvidence) -> Iterator[tuple[Block, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield each block, which of its tokens are compared, and their logprobs by engine and trainer; finite pairs only."""
    import numpy as np

    for block in evidence.rollouts.blocks():
        chosen = np.flatnonzero(block.mask)
        q, p = (block.column(f"{side}_logprobs")[block.mask].astype(np.float64) for side in ("engine", "trainer"))
        if evidence.metrics.broken:
            finite = np.isfinite(q) & np.isfinite(p)
            chosen, q, p = chosen[finite], q[finite], p[finite]
        if len(chosen):
            yield block, chosen, q, p


def find_bins(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    """Return the bin of each finite value between evenly spaced edges, as `np.searchsorted` does; the outer ones take the rest."""
    import numpy as np

    last = len(edges) - 2
    # A little less than the place, so that rounding may put a value beside an edge too low, and never too high.
    places = (values - edges[0]) * ((last + 1) / (edges[-1] - edges[0]) * (1 - 1e-12))
    found: NDArray[Any] = np.clip(places, 0, last, out=places).astype(np.intp)
    found += values >= np.append(edges[1:-1], np.inf)[found]
    return found


def draw_differences(evidence: RolloutEvidence, title: str) -> Histogram | None:
    """Draw the number of tokens by difference, in nats; None if nothing could be compared."""
    if evidence.metrics_or_none is None:
        return None
    sums = sum_tokens(evidence)
    beyond = f" The outer bins hold what is beyond {WIDEST:g} nats." if evidence.metrics.abs_max > WIDEST else ""
    return Histogram(
        title,
        "Trainer minus engine, over all compared tokens. Rounding gives a narrow peak around 0; a second peak or one long tail is "
        f"a fault.{beyond}",
        tuple(sums.gap_edges.tolist()),
        (Series("tokens", tuple(sums.gaps.tolist())),),
        "trainer − engine, nats",
        "tokens",
        "log",
        codes=("PAR014", "PAR020", "PAR024", "PAR075"),
    )


def draw_density(evidence: RolloutEvidence, title: str) -> HeatMap | None:
    """Draw the number of tokens by logprob on either side; None if nothing could be compared."""
    import numpy as np

    if evidence.metrics_or_none is None:
        return None
    table, edges = sum_tokens(evidence).logprobs, sum_tokens(evidence).logprob_edges
    labels = [f"{(low + high) / 2:.3g}" for low, high in pairwise(edges.tolist())]
    last = DENSITY_BINS - 1
    cells = {(last - row, column): HeatCell(float(table[row, column])) for row, column in np.argwhere(table).tolist()}
    return HeatMap(
        title,
        "Each cell holds the tokens with about these logprobs: the engine's from left to right, the trainer's from bottom to top. "
        "Equal sides lie on the diagonal; a line of another slope is a temperature, a cloud beside it another model.",
        tuple(reversed(labels)),
        tuple(labels),
        cells,
        value_label="tokens",
        codes=("PAR027", "PAR028", "PAR029"),
        row_label="trainer, nats:",
        column_label="engine, nats:",
    )


def draw_kl_by_position(evidence: RolloutEvidence, title: str) -> Curves | None:
    """Draw the k3 estimate of the KL divergence and the mean difference along the response; None for nothing to compare."""
    if evidence.metrics_or_none is None:
        return None
    width = sum_tokens(evidence).width
    counts, *sides = sum_tokens(evidence).points.tolist()
    means = [[total / number if number else None for total, number in zip(side, counts, strict=True)] for side in sides]
    direction = "KL(trainer ‖ engine)" if evidence.metrics.sampled_by == "trainer" else "KL(engine ‖ trainer)"
    each = "token" if width == 1 else f"{width} tokens"
    return Curves(
        title,
        f"Means over the sequences, for each {each} of the response. A gap that grows along the response comes from positions or "
        "from a cache; one at its start comes from the prompt.",
        tuple(range(0, width * len(counts), width)),
        (Series(f"{direction}, k3", tuple(means[0])), Series("mean |Δ|", tuple(means[1]))),
        "token of the response",
        "nats",
        choose_scale([*means[0], *means[1]]),
        codes=("PAR020", "PAR025"),
    )
