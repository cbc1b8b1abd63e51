"""Draws the tokens of rollouts: how far apart both sides' logprobs are, how often, and where in the response."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, Any

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


def draw_differences(evidence: RolloutEvidence, title: str) -> Histogram | None:
    """Draw the number of tokens by difference, in nats; None if nothing could be compared."""
    if evidence.metrics_or_none is None:
        return None
    # an odd number, so that 0 lies in the middle of a bin
    bins = 2 * min(max(isqrt(evidence.metrics.tokens), 10), BINS // 2) + 1
    edges, counts = compute_log_ratio_histogram(evidence, bins)
    beyond = f" The outer bins hold what is beyond {WIDEST:g} nats." if evidence.metrics.abs_max > WIDEST else ""
    return Histogram(
        title,
        "Trainer minus engine, over all compared tokens. Rounding gives a narrow peak around 0; a second peak or one long tail is "
        f"a fault.{beyond}",
        tuple(edges.tolist()),
        (Series("tokens", tuple(counts.tolist())),),
        "trainer − engine, nats",
        "tokens",
        "log",
        codes=("PAR014", "PAR020", "PAR024", "PAR075"),
    )


def compute_log_ratio_histogram(evidence: RolloutEvidence, bins: int = BINS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return edges [bins + 1] and counts [bins] of trainer - engine; the last bins count values beyond WIDEST."""
    import numpy as np

    widest = min(WIDEST, max(evidence.metrics.abs_max, 1e-6))
    edges = np.linspace(-widest, widest, bins + 1)
    counts = np.zeros(bins)
    for block in evidence.rollouts.blocks():
        r = (block.column("trainer_logprobs").astype(float) - block.column("engine_logprobs"))[block.mask]
        counts += np.histogram(np.clip(r[np.isfinite(r)], -widest, widest), edges)[0]
    return edges, counts


def draw_density(evidence: RolloutEvidence, title: str) -> HeatMap | None:
    """Draw the number of tokens by logprob on either side; None if nothing could be compared."""
    import numpy as np

    if evidence.metrics_or_none is None:
        return None
    ends = [(side.min(), side.max()) for _, _, *pair in _compared_tokens(evidence) for side in pair if side.size]
    most = max(float(max(high for _, high in ends)), 0.0)
    least = min(max(float(min(low for low, _ in ends)), LOWEST), most - 1e-3)
    edges = np.linspace(least, most, DENSITY_BINS + 1)
    counts = np.zeros(DENSITY_BINS**2, np.int64)
    for _, _, q, p in _compared_tokens(evidence):
        counts += np.bincount(find_bins(p, edges) * DENSITY_BINS + find_bins(q, edges), minlength=len(counts))
    table = counts.reshape(DENSITY_BINS, DENSITY_BINS)
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


def find_bins(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    """Return the bin of each value between even edges, as numpy.histogram would; the lowest takes what is below it."""
    import numpy as np

    last = len(edges) - 2
    bins: NDArray[Any] = ((values - edges[0]) * ((last + 1) / (edges[-1] - edges[0]))).clip(0, last).astype(np.int64)
    bins -= (values < edges[bins]) & (bins > 0)  # rounding puts a value that is close to an edge on its other side
    bins += (values >= edges[bins + 1]) & (bins < last)
    return bins


def draw_kl_by_position(evidence: RolloutEvidence, title: str) -> Curves | None:
    """Draw the k3 estimate of the KL divergence and the mean difference along the response; None for nothing to compare."""
    import numpy as np

    if evidence.metrics_or_none is None:
        return None
    is_trainers = evidence.metrics.sampled_by == "trainer"
    farthest = max(int(_find_places(*part[:2]).max(initial=0)) for part in _compared_tokens(evidence))
    width = farthest // PLACES + 1
    counts: NDArray[Any] = np.zeros(farthest // width + 1)
    sums: list[NDArray[Any]] = [counts, counts]
    for block, chosen, q, p in _compared_tokens(evidence):
        bins = _find_places(block, chosen) // width
        ratio = np.clip(q - p if is_trainers else p - q, None, EXPONENT_BOUND)
        counts = counts + np.bincount(bins, minlength=len(counts))
        bins = np.concatenate((range(len(counts)), bins))  # goes on from the sums of the blocks before
        for side, more in enumerate((np.expm1(ratio) - ratio, np.abs(p - q))):
            sums[side] = np.bincount(bins, np.concatenate((sums[side], more)))
    means = [
        [float(total / number) if number else None for total, number in zip(side, counts, strict=True)] for side in sums
    ]
    direction = "KL(trainer ‖ engine)" if is_trainers else "KL(engine ‖ trainer)"
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


def _compared_tokens(evidence: RolloutEvidence) -> Iterator[tuple[Block, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield each block, which of its tokens are compared, and their logprobs by engine and trainer; finite pairs only."""
    import numpy as np

    for block in evidence.rollouts.blocks():
        q, p = (block.column(f"{side}_logprobs").astype(np.float64) for side in ("engine", "trainer"))
        chosen = np.flatnonzero(block.mask & np.isfinite(q) & np.isfinite(p))
        yield block, chosen, q[chosen], p[chosen]


def _find_places(block: Block, chosen: NDArray[Any]) -> NDArray[Any]:
    """Return where in the response each of these tokens of a block stands."""
    import numpy as np

    prompts = block.rollouts.prompt_lengths[block.owners[chosen]]
    places: NDArray[Any] = np.maximum(block.positions[chosen] - prompts, 0).astype(np.int64)
    return places
