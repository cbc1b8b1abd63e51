"""How long each phase of a trial may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ckptcheck.errors import CkptcheckError

SPEED = 50e6
"""Bytes per second at which even a slow disk or network passes the weights on; phases get that time beside their own."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds for each phase of its kind. None: the default below, and the time that the weights take at `SPEED`.

    start: until a trainer or an engine has loaded. score: logprobs and tokens of one side after the other. step: an optimizer
    step. sync: digests, export, update, digests.
    """

    start: float | None = None
    score: float | None = None
    step: float | None = None
    sync: float | None = None

    def seconds(self, kind: str, nbytes: int) -> float:
        """Return the seconds of a phase. kind: one of the fields; nbytes: of the weights."""
        told: float | None = getattr(self, kind)
        return told if told is not None else DEFAULTS[kind] + nbytes / SPEED


DEFAULTS = {"start": 900.0, "score": 600.0, "step": 600.0, "sync": 300.0}
"""An engine's first start on a cold disk takes a minute before it reads a weight; graphs are captured by the first score."""


def read(texts: Sequence[str]) -> Timeouts:
    """Read ``PHASE=SECONDS`` or ``SECONDS`` for every phase; later ones win. Raises CkptcheckError for others."""
    kinds = [field.name for field in fields(Timeouts)]
    found = Timeouts()
    for text in texts:
        name, given, number = text.rpartition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf") or (given and name not in kinds):
            raise CkptcheckError(
                f"--timeout {text} is neither SECONDS nor PHASE=SECONDS", f"the phases are {', '.join(kinds)}"
            )
        found = replace(found, **dict.fromkeys([name] if name else kinds, seconds))
    return found
