"""One known issue of a framework or an engine, as its table writes it, and as a job meets it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

import msgspec

from ckptcheck.jobs.dated_defaults import Change, describe_span
from ckptcheck.jobs.document import Leaf

Wanted = bool | int | float | str


class Issue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One combination of settings that goes wrong."""

    says: str
    """What happens, as a sentence without its end."""
    source: str
    """The issue or pull request, ``owner/name#1``, the commit, ``owner/name@1a2b3c4``, or the package, ``owner/name 0.32.0``."""
    when: dict[str, Wanted | tuple[Wanted, ...]] = {}
    """Setting → the value with which it goes wrong, or several.

    A setting is a key of the framework or an argument of the engine (``a|b``: the first of them that is written), a variable of
    the environment (``$A``), or a name in `FIELDS`, which counts defaults too. A text is a pattern: ``*`` is any value, ``> 1``
    compares, ``!= x`` is another value than x, ``unwritten`` is none.
    """
    whole: dict[str, int] = {}
    """Keys whose product is compared with that of `part`, each with the framework's default, 0 where it has none.

    It goes wrong where `part` does not fit.
    """
    part: dict[str, int | float] = {}
    """The keys of the other product."""
    among: dict[str, int] = {}
    """Keys by whose product that of `whole` is divided first, rounded down: ranks that share it."""
    fits: Literal["a divisor", "a divisor of more", "at most", "equal", "sum at most", "shares"] = "a divisor"
    """How the framework asserts that `part` fits `whole`; with ``sum at most`` the sum of `part` counts, not its product.

    ``a divisor of more``: a `whole` that is smaller fits too.

    The sum of ``shares`` is at most 1: each is a share of the same memory, and there is no `whole`.
    """
    severity: Literal["error", "warning", "info"] = "error"
    """error: the program stops, or computes something its user did not mean."""
    hint: str = ""
    """What helps beside the version that mends it."""
    since: Change | str | None = None
    """When it began; of an engine only the release. None for as long as is known."""
    until: Change | str | None = None
    """When it was mended, likewise; None where no version that was read mends it."""
    example: dict[str, Wanted] = {}
    """A job with it, for the tests, where `when` does not say one: keys of the framework with their values."""

    @property
    def span(self) -> tuple[Change | None, Change | None]:
        """When it began and when it was mended."""
        begin, end = (
            Change(datetime.date.min, "", change) if isinstance(change, str) else change
            for change in (self.since, self.until)
        )
        return begin, end


class IssueTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The known issues of one framework or engine, and the values that its keys take."""

    issue: tuple[Issue, ...]
    values: dict[str, tuple[str, ...]] = {}
    """Key → all values that any release takes. With ``*`` among them a plugin may add others, or a class of the user's."""


@dataclass(frozen=True)
class MetIssue:
    """An issue whose settings a job has."""

    issue: Issue
    program: str
    """The framework or engine, as reports name it."""
    settings: str
    """The settings of the job that meet it, each with its place; "" where the job leaves all of them to their defaults."""
    leaf: Leaf | None
    """The first of them that is written."""
    unsure: str = ""
    """Why it is not known whether the issue is the job's; "" where it is."""

    @property
    def span(self) -> str:
        """The versions with the issue: ``TRL before 0.28.0``."""
        return f"{self.program}{describe_span(*self.issue.span)}"
