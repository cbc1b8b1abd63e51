"""Draws the plots of ``parity judge``. Needs matplotlib, which the extra `plots` installs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

BINS = 201
WIDEST = 6.0
"""Largest |log ratio| of the histogram; the last bins count values beyond it."""


def require_matplotlib() -> None:
    """Raise CkptcheckError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise CkptcheckError("plots need matplotlib", hint="pip install 'ckptcheck[plots]'")


def draw_plots(evidence: RolloutEvidence, folder: Path, stem: str) -> Iterator[Path]:
    """Write STEM-position, STEM-ratio and STEM-worst as PNG and SVG, and yield their paths. Raises CkptcheckError."""
    import matplotlib as mpl

    mpl.use("Agg")
    # without a salt ids are random, and the files of equal plots differ
    mpl.rcParams["svg.hashsalt"] = "ckptcheck"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in (("position", _plot_positions), ("ratio", _plot_ratios), ("worst", _plot_worst_tokens)):
            yield from _save_figure(plot, evidence, folder / f"{stem}-{name}")
    except OSError as error:
        raise CkptcheckError(f"cannot write plots to {folder}: {error.strerror or error}") from error


def _save_figure(plot: Any, evidence: RolloutEvidence, base: Path) -> Iterator[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    plot(figure.add_subplot(), evidence)
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = base.with_name(f"{base.name}.{suffix}")
        figure.savefig(path, metadata=metadata, dpi=120)
        yield path


def _plot_positions(axes: Any, evidence: RolloutEvidence) -> None:
    places, _, abs_means, signed_means = zip(*evidence.metrics.profile, strict=True)
    axes.plot([place + 1 for place in places], abs_means, marker="o", label="mean |Δ|")
    axes.plot([place + 1 for place in places], signed_means, marker=".", label="mean Δ (trainer - engine)")
    axes.set(
        xscale="log",
        xlabel="place in the response",
        ylabel="nats",
        title=f"gap along the response, {evidence.rollouts.name}",
    )
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.legend()


def _plot_ratios(axes: Any, evidence: RolloutEvidence) -> None:
    edges, counts = compute_log_ratio_histogram(evidence)
    axes.stairs(counts, edges, fill=True)
    axes.set(
        yscale="log", xlabel="trainer - engine, nats", ylabel="tokens", title=f"log ratio, {evidence.rollouts.name}"
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


def _plot_worst_tokens(axes: Any, evidence: RolloutEvidence) -> None:
    worst = evidence.metrics.worst[::-1]
    names = [
        (evidence.decode(place.token) if evidence.decode else str(place.token)) + f"  {place.sequence}:{place.position}"
        for place in worst
    ]
    rows = range(len(worst))
    axes.barh(rows, [place.trainer - place.engine for place in worst])
    axes.set_yticks(rows, [name.replace("$", r"\$") for name in names])
    axes.set(xlabel="trainer - engine, nats", title=f"worst tokens, {evidence.rollouts.name}")
