"""Draws what the tables of ``parity judge`` cannot show. Needs matplotlib, the extra `plots`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ckptcheck.parity.judged import Judged

BINS = 201
WIDEST = 6.0
"""Log ratios beyond are drawn at the edge."""


def demand() -> None:
    """Raise CkptcheckError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise CkptcheckError("plots need matplotlib", hint="pip install 'ckptcheck[plots]'")


def draw(judged: Judged, folder: Path, stem: str) -> Iterator[Path]:
    """Write STEM-position, STEM-ratio and STEM-worst as PNG and SVG, and give their paths. Raises CkptcheckError."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "ckptcheck"  # else ids are random, and no two files equal
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in (("position", _position), ("ratio", _ratio), ("worst", _worst)):
            yield from _saved(plot, judged, folder / f"{stem}-{name}")
    except OSError as error:
        raise CkptcheckError(f"cannot write plots to {folder}: {error.strerror or error}") from error


def _saved(plot: Any, judged: Judged, base: Path) -> Iterator[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    plot(figure.add_subplot(), judged)
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = base.with_name(f"{base.name}.{suffix}")
        figure.savefig(path, metadata=metadata, dpi=120)
        yield path


def _position(axes: Any, judged: Judged) -> None:
    places, _, apart, signed = zip(*judged.gap.profile, strict=True)
    axes.plot([place + 1 for place in places], apart, marker="o", label="mean |Δ|")
    axes.plot([place + 1 for place in places], signed, marker=".", label="mean Δ (trainer - engine)")
    axes.set(
        xscale="log",
        xlabel="place in the response",
        ylabel="nats",
        title=f"gap along the response, {judged.rollouts.name}",
    )
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.legend()


def _ratio(axes: Any, judged: Judged) -> None:
    edges, counts = histogram(judged)
    axes.stairs(counts, edges, fill=True)
    axes.set(yscale="log", xlabel="trainer - engine, nats", ylabel="tokens", title=f"log ratio, {judged.rollouts.name}")


def histogram(judged: Judged) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return edges [BINS + 1] and counts [BINS] of trainer - engine; what lies beyond WIDEST is counted in the last bins."""
    import numpy as np

    widest = min(WIDEST, max(judged.gap.abs_max, 1e-6))
    edges = np.linspace(-widest, widest, BINS + 1)
    counts = np.zeros(BINS)
    for block in judged.rollouts.blocks():
        r = (block.column("trainer_logprobs").astype(float) - block.column("engine_logprobs"))[block.mask]
        counts += np.histogram(np.clip(r[np.isfinite(r)], -widest, widest), edges)[0]
    return edges, counts


def _worst(axes: Any, judged: Judged) -> None:
    worst = judged.gap.worst[::-1]
    names = [
        (judged.decode(place.token) if judged.decode else str(place.token)) + f"  {place.sequence}:{place.position}"
        for place in worst
    ]
    rows = range(len(worst))
    axes.barh(rows, [place.trainer - place.engine for place in worst])
    axes.set_yticks(rows, [name.replace("$", r"\$") for name in names])
    axes.set(xlabel="trainer - engine, nats", title=f"worst tokens, {judged.rollouts.name}")
