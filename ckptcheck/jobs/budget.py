"""Bounds the work that the files of one job can cause: a short file can ask for more than a machine can do."""

from __future__ import annotations

import time
from contextvars import ContextVar, Token

from ckptcheck.errors import CkptcheckError

MOST = 300_000
"""Steps that reading one job may take: about three seconds. verl's reference job, of 26 files, takes 90,000."""
VALUE_STEPS = 5
"""Steps that one value takes: reading it from YAML costs about as much as five bytes of text."""
CHARACTERS = 50
"""Characters of a shell script, or of a text that it or a Python script computes, that take one step."""
ITEMS = 10
"""Items of a list or dict of a Python script that take one step."""
WORDS = 20
"""Words of a shell's list that take one step where they are only looked at."""
CALLS, MANY = 128, 1000
"""The clock is read at one of so many calls, and where so many steps are taken at once: reading it is a call of the system."""
SECONDS = 3.0
"""Processor time that reading one job may take. It ends what the steps do not count; verl's reference job takes 0.15 s."""


class WorkBudget:
    """The steps that reading one job may still take: all parsers and walks take them from the same budget.

    A step is about ten microseconds: a byte of YAML, a fifth of a value that an alias, a merge (``<<``) or a ``defaults:`` list
    brings, a character that an interpolation comes to, a word of a shell script, two expressions of a Python script.

    Within ``with`` a clock runs too: the budget is also used up after SECONDS of this thread's processor time.

    >>> with WorkBudget(10) as budget:
    ...     budget is current_budget()
    True
    """

    def __init__(self, steps: int = MOST) -> None:
        self.steps = steps
        self.left = steps
        self._outer: list[Token[WorkBudget | None]] = []
        # This thread's processor time at which the budget ends; None while no clock runs.
        self._end: float | None = None
        self._calls, self._is_late = 0, False

    def __enter__(self) -> WorkBudget:
        """Make this the budget of all readers that are given no other."""
        self._outer.append(_CURRENT.set(self))
        self._end = time.thread_time() + SECONDS
        return self

    def __exit__(self, *_: object) -> None:
        """Make the budget from before the current one again, and stop the clock."""
        _CURRENT.reset(self._outer.pop())
        self._end = None

    def spend(self, steps: int, place: str) -> None:
        """Take steps from the budget. place: what the work is done for, as the subject of the error.

        Raises CkptcheckError where not as many are left, or the clock has run out.
        """
        self.left -= steps
        self._calls += 1
        if self._end is not None and (steps >= MANY or self._calls % CALLS == 0) and time.thread_time() > self._end:
            self._is_late = True
        if self.left < 0 or self._is_late:
            much = f"{SECONDS:g} seconds of processor time" if self._is_late else f"{self.steps:,} steps of work"
            raise CkptcheckError(
                f"{place} comes to more than {much}: its aliases, merges, interpolations, defaults, loops or calls multiply each"
                " other",
                hint="write the values out that the job needs",
            )

    def require_left(self, place: str) -> None:
        """Raise the error of `spend` where the budget was used up, also if a reader passed over that error."""
        self.spend(0, place)


_CURRENT: ContextVar[WorkBudget | None] = ContextVar("budget", default=None)


def current_budget() -> WorkBudget:
    """Return the budget of the job that ckptcheck is reading, or a new one."""
    return _CURRENT.get() or WorkBudget()
