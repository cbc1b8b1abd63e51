"""Draws the relative difference of the two sides at each point."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.localize.localization import Localization


def draw(seen: Localization, folder: Path) -> Path:
    """Write localize.png into a folder and return its path. Raises CkptcheckError without matplotlib."""
    try:
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise CkptcheckError("plots need matplotlib", hint="pip install 'ckptcheck[plots]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    smallest = seen.limit * 1e-4
    axes.semilogy([max(point.relative, smallest) for point in seen.points], ".-", linewidth=0.8)
    axes.axhline(seen.limit, color="grey", linestyle=":", label="limit")
    if seen.first_diverging is not None:
        index = seen.points.index(seen.first_diverging)
        axes.axvline(index, color="tab:red", label=seen.first_diverging.name)
    starts = [number for number, point in enumerate(seen.points) if point.name.endswith(".input_layernorm")]
    axes.set_xticks(starts, [str(seen.points[number].layer) for number in starts])
    axes.set(xlabel="layer", ylabel="relative difference", title=f"{seen.sides[0]} ↔ {seen.sides[1]}")
    axes.legend()
    path = folder / "localize.png"
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return path
