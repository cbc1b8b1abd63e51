"""Time limits for the phases of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ckptcheck.errors import CkptcheckError

SPEED = 50e6
"""Bytes per second of a slow disk or network; each phase gets the time for the weights at that speed in addition."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds for each kind of phase. None stands for the default below plus the time for the weights at `SPEED`."""

    start: float | None = None
    """Until a trainer or an engine has loaded."""
    score: float | None = None
    """Logprobs and tokens of both sides, one after the other."""
    step: float | None = None
    """An optimizer step."""
    sync: float | None = None
    """Digests, export, update, digests."""

    def seconds(self, kind: str, nbytes: int) -> float:
        """Return the time limit of a phase. kind: one of the fields; nbytes: of the weights."""
        limit: float | None = getattr(self, kind)
        return limit if limit is not None else DEFAULTS[kind] + nbytes / SPEED


DEFAULTS = {"start": 900.0, "score": 600.0, "step": 600.0, "sync": 300.0}
"""An engine's first start on a cold disk takes a minute before it reads a weight; graphs are captured by the first score."""


def parse_timeouts(texts: Sequence[str]) -> Timeouts:
    """Parse ``PHASE=SECONDS``, or ``SECONDS`` for every phase; later texts win. Raises CkptcheckError for anything else."""
    kinds = [field.name for field in fields(Timeouts)]
    timeouts = Timeouts()
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf") or (equals and name not in kinds):
            raise CkptcheckError(
                f"--timeout {text} is neither SECONDS nor PHASE=SECONDS", f"the phases are {', '.join(kinds)}"
            )
        timeouts = replace(timeouts, **dict.fromkeys([name] if name else kinds, seconds))
    return timeouts
