"""Runs rules over evidence and reports what became of each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ckptcheck.errors import EvidenceError
from ckptcheck.phrase import few
from ckptcheck.report import Report
from ckptcheck.rule import SEVERITIES, Finding, Problem, Rule, Severity, Skip


class Evidence(Protocol):
    """What every kind of evidence tells about itself; rules know the rest.

    It may offer more: `aspect(kind)`, itself as rules on another kind see it, `sections`, what was measured (report.Section), and
    `failed_to`, what could not be done with the unread ("read").
    """

    @property
    def kind(self) -> str:
        """Matched with a rule's `on`."""
        ...

    @property
    def target(self) -> str:
        """What the user named."""
        ...

    @property
    def subject(self) -> str:
        """One line that says what it is."""
        ...

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read; while there is one, no rule can pass."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors, bytes."""
        ...


@dataclass
class _Look:
    """A rule, the evidence as it sees it, and what became of it: one fate, or findings and then a crash."""

    rule: Rule
    seen: Any
    applies: bool = False
    findings: list[Finding] = field(default_factory=list)
    passed: bool = False
    skipped: str | None = None
    crashed: str | None = None

    def attempt(self, work: Callable[[], None]) -> None:
        """Do that, and note why it could not be done to the end."""
        try:
            work()
        except Skip as skip:
            if not self.findings:  # a rule has one fate: what it found says more than where it could not look
                self.skipped = str(skip)
        except EvidenceError as error:
            self.crashed = error.message
        except Exception as error:  # a rule is anybody's code: whatever it raises must not stop the others
            self.crashed = _last_words(error)

    def ask(self) -> None:
        """Ask whether the rule applies."""
        self.applies = self.rule.when is None or bool(self.rule.when(self.seen))

    def check(self, severity: Severity) -> None:
        """Let it look."""
        for problem in self.rule.check(self.seen):  # one by one: what was found before a crash is kept
            self.findings.append(_finding(self.rule, severity, problem))
        self.passed = not self.findings


def run(
    evidence: Evidence,
    rules: Iterable[Rule],
    *,
    ignored: Mapping[str, str] | None = None,
    severities: Mapping[str, Severity] | None = None,
) -> Report:
    """Run every rule that applies; one that fails is reported and the others still run.

    ignored: code → reason, for rules the user told not to look. severities: code → severity overrides.
    """
    looks = [_Look(rule, seen) for rule in rules if (seen := _aspect(evidence, rule.on)) is not None]
    for (
        look
    ) in looks:  # all are asked first: a rule's file is loaded then, and not when its evidence has been waited for
        look.attempt(look.ask)
    for look in sorted(
        looks, key=lambda look: look.rule.on != evidence.kind
    ):  # values may still be being read: theirs wait
        if look.applies and ignored and look.rule.code in ignored:
            look.skipped = ignored[look.rule.code]
        elif look.applies:
            severity = (severities or {}).get(look.rule.code, look.rule.severity)
            look.attempt(partial(look.check, severity))
    findings = [finding for look in looks for finding in look.findings]
    passed = [look.rule.code for look in looks if look.passed]
    skipped = [(look.rule.code, look.skipped) for look in looks if look.skipped is not None]
    crashed = [(look.rule.code, look.crashed) for look in looks if look.crashed is not None]
    nothing = None if passed or findings or crashed else "no selected rule looked at this target"
    if unread := few([f"{name}: {reason}" for name, reason in evidence.unread.items()]):
        lost = f"could not {getattr(evidence, 'failed_to', 'read')} {unread}"
        crashed += [(code, lost) for code in passed]  # each may have missed what is in there
        nothing = None if crashed else lost
        passed = []
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))  # stable: the order of the rules within
    return Report(
        target=evidence.target,
        subject=evidence.subject,
        findings=tuple(findings),
        passed=tuple(passed),
        skipped=tuple(skipped),
        crashed=tuple(crashed),
        error=nothing,
        counts=evidence.counts,
        sections=tuple(getattr(evidence, "sections", ())),
    )


def _aspect(evidence: Evidence, kind: str) -> Any:
    """Return the evidence as rules on this kind see it: itself, or what it offers them (`aspect`); None if nothing."""
    if kind == evidence.kind:
        return evidence
    offered = getattr(evidence, "aspect", None)
    return offered(kind) if offered is not None else None


def _finding(rule: Rule, severity: Severity, problem: Problem) -> Finding:
    return Finding(
        rule.code, rule.name, severity, problem.message, problem.file, problem.key, problem.hint, problem.line
    )


def _last_words(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}, line {where.lineno})"
