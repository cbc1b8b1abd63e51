"""Bounds the work that the files of one job can cause: a short file can ask for more than a machine can do."""

from __future__ import annotations

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


class WorkBudget:
    """The steps that reading one job may still take: all parsers and walks take them from the same budget.

    A step is about ten microseconds: a byte of YAML, a fifth of a value that an alias, a merge (``<<``) or a ``defaults:`` list
    brings, a character that an interpolation comes to, a word of a shell script, two expressions of a Python script.

    >>> with WorkBudget(10) as budget:
    ...     budget is current_budget()
    True
    """

    def __init__(self, steps: int = MOST) -> None:
        self.steps = steps
        self.left = steps
        self._outer: list[Token[WorkBudget | None]] = []

    def __enter__(self) -> WorkBudget:
        """Make this the budget of all readers that are given no other."""
        self._outer.append(_CURRENT.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        """Make the budget from before the current one again."""
        _CURRENT.reset(self._outer.pop())

    def spend(self, steps: int, place: str) -> None:
        """Take steps from the budget. place: what the work is done for, as the subject of the error.

        Raises CkptcheckError where not as many are left.
        """
        self.left -= steps
        if self.left < 0:
            raise CkptcheckError(
                f"{place} comes to more than {self.steps:,} steps of work: its aliases, merges, interpolations, defaults, loops or"
                " calls multiply each other",
                hint="write the values out that the job needs",
            )

    def require_left(self, place: str) -> None:
        """Raise the error of `spend` where the budget was used up, also if a reader passed over that error."""
        self.spend(0, place)


_CURRENT: ContextVar[WorkBudget | None] = ContextVar("budget", default=None)


def current_budget() -> WorkBudget:
    """Return the budget of the job that is being read, a new one where none is."""
    return _CURRENT.get() or WorkBudget()
