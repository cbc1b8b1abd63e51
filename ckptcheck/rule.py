"""What a rule is, what it yields, and what the runner makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From gravest to lightest."""


@dataclass(frozen=True)
class Problem:
    """What a check saw, and where. The runner adds which rule saw it and how grave it is.

    message: one sentence a person who has never seen the tool understands, without a final full stop.
    file: the file it concerns, relative to the target; key: the tensor or JSON path inside it; line: where in a file that
    people write, counted from 1. hint: what to do next, as an imperative.
    """

    message: str
    file: str | None = None
    key: str | None = None
    hint: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """A problem with the code, the name and the severity of the rule that saw it."""

    code: str
    name: str
    severity: Severity
    message: str
    file: str | None = None
    key: str | None = None
    hint: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """The file, the line and the key, as far as they are known: ``config.json num_hidden_layers``, ``job.yaml:12 seed``."""
        file = f"{self.file}:{self.line}" if self.file and self.line else self.file
        key = '""' if self.key == "" else self.key  # a tensor may be called so
        return " ".join(part for part in (file, key) if part)


class Skip(Exception):
    """Raised by a check that applies here but cannot look; the reason is reported, and skipped is not passed."""


Check = Callable[[Any], Iterable[Problem]]


@dataclass(frozen=True)
class Rule:
    """One check over one kind of evidence.

    on: the kind of evidence: ``checkpoint``, ``megatron``, ``values`` (what both of these hold), ``manifest``, …
    when: whether the rule applies to this evidence at all; one that does not apply is not reported.
    explanation: the page that ``ckptcheck rule CODE`` prints, the docstring of the rule's file.
    """

    code: str
    name: str
    severity: Severity
    check: Check = field(repr=False)
    on: str = "checkpoint"
    when: Callable[[Any], bool] | None = field(default=None, repr=False)
    explanation: str = field(default="", repr=False)
    path: Path | None = field(default=None, repr=False)

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
) -> Callable[[Check], Rule]:
    """Turn a check into a Rule. The pack loader finds it in its file and adds the docstring and the path.

    >>> @rule("DOC001", "example", severity="info")
    ... def check(ckpt):
    ...     yield Problem("this is an example")
    >>> check.code, check.severity
    ('DOC001', 'info')
    """

    def wrap(check: Check) -> Rule:
        return Rule(code=code, name=name, severity=severity, check=check, on=on, when=when)

    return wrap
