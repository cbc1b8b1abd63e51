"""Draws the numbers of a record of syncs: seconds, loss, version, parity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, Mark, Series, choose_scale
from ckptcheck.reporters.pictures.history_raster import label_syncs

if TYPE_CHECKING:
    from ckptcheck.runs.history.history import History
    from ckptcheck.runs.history.record import SyncRecord


def draw_seconds(history: History, title: str) -> Curves | None:
    """Draw how long syncs and their checks took, and mark those that failed; None without a time."""
    lines: dict[str, Callable[[SyncRecord], float | None]] = {
        "sync": lambda sync: sync.seconds or None,
        "check": lambda sync: sync.checked or None,
    }
    caption = "A check reads digests on both sides and asks the engine; a job waits for it too."
    marks = tuple(
        Mark("sync", index, "failed") for index, sync in enumerate(history.syncs) if not sync.ok and sync.seconds
    )
    return _draw_numbers(history, title, caption, "seconds", lines, marks=marks, codes=("HIS009",))


def draw_loss(history: History, title: str) -> Curves | None:
    """Draw the trainer's loss; None if it was not recorded."""
    caption = "As the trainer reported it. A loss that stays the same means that no step was taken, or that it was not updated."
    return _draw_numbers(history, title, caption, "", {"loss": lambda sync: sync.loss})


def draw_versions(history: History, title: str) -> Curves | None:
    """Draw the version that the engine reported after each sync; None if it is no number."""
    caption = (
        "What the engine reported after each sync. A version that does not rise means that the engine did not count it."
    )
    return _draw_numbers(history, title, caption, "", {"version": _read_version}, steps=True, codes=("HIS005",))


def draw_probes(history: History, title: str) -> Curves | None:
    """Draw how far both sides' logprobs were apart after each sync; None without a probe."""
    lines: dict[str, Callable[[SyncRecord], float | None]] = {
        "mean |Δ|": lambda sync: sync.probe.mean if sync.probe is not None else None,
        "largest |Δ|": lambda sync: sync.probe.most if sync.probe is not None else None,
        "floor of the mean": lambda sync: sync.probe.floor if sync.probe is not None else None,
    }
    caption = "Engine and trainer on fixed sequences. The floor is the mean of equal weights on both sides, where it was measured."
    return _draw_numbers(history, title, caption, "nats", lines, codes=("HIS016",))


def _read_version(sync: SyncRecord) -> float | None:
    text = sync.version or ""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _draw_numbers(
    history: History,
    title: str,
    caption: str,
    y_label: str,
    lines: dict[str, Callable[[SyncRecord], float | None]],
    *,
    steps: bool = False,
    marks: tuple[Mark, ...] = (),
    codes: tuple[str, ...] = (),
) -> Curves | None:
    """Return a line for each number that a sync has; None without one."""
    series = tuple(Series(name, tuple(map(read, history.syncs))) for name, read in lines.items())
    series = tuple(each for each in series if any(value is not None for value in each.values))
    if not series:
        return None
    scale = choose_scale(value for each in series for value in each.values)
    return Curves(title, caption, label_syncs(history), series, "sync", y_label, scale, steps, marks, codes=codes)
