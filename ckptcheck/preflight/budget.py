"""Bounds the work that the files of one job can cause: a short file can ask for more than a machine can do."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError

MOST = 1_000_000
"""Steps that reading one job may take. verl's reference job, of 26 files, takes 90,000."""
VALUE_STEPS = 5
"""Steps that one value takes: reading it from YAML costs about as much as five bytes of text."""


class WorkBudget:
    """The steps that reading one job may still take.

    A step is a byte of YAML, a fifth of a value that an alias, a merge (``<<``) or a ``defaults:`` list brings, or a character
    that an interpolation comes to.
    """

    def __init__(self, steps: int = MOST) -> None:
        self.steps = steps
        self.left = steps

    def spend(self, steps: int, place: str) -> None:
        """Take steps from the budget. place: what the work is done for, as the subject of the error.

        Raises CkptcheckError where not as many are left.
        """
        self.left -= steps
        if self.left < 0:
            raise CkptcheckError(
                f"{place} comes to more than {self.steps:,} steps of work: its aliases, merges, interpolations or defaults"
                " multiply each other",
                hint="write the values out that the job needs",
            )
