"""Defines a rule, the problems that its check yields, and the findings that the runner makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

import msgspec

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From most to least severe."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # With a default, so that `Rule` stands for a rule on any evidence.
    E = TypeVar("E", default=Any)
else:
    from typing import TypeVar

    E = TypeVar("E")
"""The evidence, or the view of it, that a rule checks."""


class Problem(msgspec.Struct, frozen=True):
    """A problem that a check found. The runner adds the code and the severity of the rule."""

    message: str
    """One sentence without a final full stop, for a reader who has never seen the tool."""
    file: str | None = None
    """The file with the problem, relative to the target."""
    key: str | None = None
    """The tensor or the JSON path in that file."""
    hint: str | None = None
    """What to do next, as an imperative."""
    line: int | None = None
    """The line in a file that people write, counted from 1."""
    severity: Severity | None = None
    """A severity other than the rule's own, if the evidence calls for it; a severity in the settings wins over both."""
    names: tuple[str, ...] = ()
    """All names that the message is about, if it gives only the first few and counts the rest."""
    follows: tuple[str, ...] = ()
    """Codes of rules that name the cause: where one of them has a finding, this one is an info that points to it."""


class Finding(msgspec.Struct, frozen=True):
    """A problem with the code, the name and the severity of the rule that found it."""

    code: str
    name: str
    severity: Severity
    message: str
    file: str | None = None
    key: str | None = None
    hint: str | None = None
    line: int | None = None
    names: tuple[str, ...] = ()
    """All names that the message is about, for programs: the message may give only the first few."""

    @property
    def place(self) -> str:
        """File, line and key, as far as they are known: ``config.json num_hidden_layers``, ``job.yaml:12 seed``."""
        file = f"{self.file}:{self.line}" if self.file and self.line else self.file
        # The name of a tensor may be empty.
        key = '""' if self.key == "" else self.key
        return " ".join(part for part in (file, key) if part)


class Skip(Exception):
    """Raised by a check that applies but cannot run. The report gives the reason; a skipped rule has not passed."""


class SkipForDamage(Skip):
    """Raised if a missing or broken file keeps a rule from checking. Another rule reports the file.

    If that rule did not run, the report is incomplete.
    """


class Rule(msgspec.Struct, Generic[E], frozen=True):
    """One check of one kind of evidence."""

    code: str
    name: str
    severity: Severity
    check: Callable[[E], Iterable[Problem]]
    on: str = "checkpoint"
    """The kind of evidence, or of view (`Evidence.view_for`): ``checkpoint``, ``index``, ``values``, ``megatron``, …"""
    when: Callable[[E], bool] | None = None
    """Whether the rule applies to this evidence; a rule that does not apply is not reported. None: it always applies."""
    explanation: str = ""
    """The page that ``ckptcheck rule CODE`` prints: the docstring of the rule's file."""
    path: Path | None = None

    @property
    def summary(self) -> str:
        """The first line of the explanation."""
        return self.explanation.strip().partition("\n")[0]


def rule(
    code: str,
    name: str,
    *,
    severity: Severity,
    on: str = "checkpoint",
    when: Callable[[Any], bool] | None = None,
) -> Callable[[Callable[[E], Iterable[Problem]]], Rule[E]]:
    """Turn a check into a Rule. The loader finds it in its file and adds the docstring and the path.

    >>> @rule("DOC001", "example", severity="info")
    ... def check(ckpt):
    ...     yield Problem("this is an example")
    >>> check.code, check.severity
    ('DOC001', 'info')
    """

    def wrap(check: Callable[[E], Iterable[Problem]]) -> Rule[E]:
        return Rule(code=code, name=name, severity=severity, check=check, on=on, when=when)

    return wrap
