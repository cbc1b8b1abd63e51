"""Runs rules over evidence and reports what became of each."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
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
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: list[tuple[str, str]] = []
    crashed: list[tuple[str, str]] = []
    for rule in rules:
        seen = _aspect(evidence, rule.on)
        if seen is None:
            continue
        found = len(findings)
        try:
            if rule.when is not None and not rule.when(seen):
                continue
            if ignored and rule.code in ignored:
                skipped.append((rule.code, ignored[rule.code]))
                continue
            severity = (severities or {}).get(rule.code, rule.severity)
            for problem in rule.check(seen):  # one by one: what was found before a crash is kept
                findings.append(_finding(rule, severity, problem))  # noqa: PERF401
        except Skip as skip:
            if len(findings) == found:  # a rule has one fate: what it found says more than where it could not look
                skipped.append((rule.code, str(skip)))
        except EvidenceError as error:
            crashed.append((rule.code, error.message))
        except Exception as error:  # a rule is anybody's code: whatever it raises must not stop the others
            crashed.append((rule.code, _last_words(error)))
        else:
            if len(findings) == found:
                passed.append(rule.code)
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
