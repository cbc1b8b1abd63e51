"""Runs rules over evidence and reports the outcome of each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import structs

from ckptcheck.errors import EvidenceError, describe_shortage
from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import SEVERITIES, Finding, Problem, Rule, Severity, Skip, SkipForDamage
from ckptcheck.text.formatting import find_listed, join_truncated, remember_lists


class RuleRun(msgspec.Struct):
    """One run of a rule: it passes, is skipped, or has findings; a crash may follow its findings."""

    rule: Rule
    evidence: Evidence
    lists: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Text of a list in a message → all of its names."""
    view: object | None = None
    """The evidence as the rule sees it; None if it has nothing for the rule."""
    applies: bool = False
    findings: list[Finding] = msgspec.field(default_factory=list)
    follows: dict[Finding, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Finding → `Problem.follows`."""
    passed: bool = False
    skipped: str | None = None
    """Why the rule could not check, or None."""
    skipped_for_damage: bool = False
    """Whether a missing or broken file is the reason."""
    crashed: str | None = None
    """Why the rule failed, or could not read its evidence; None if it ran to its end."""

    def decide_applies(self) -> None:
        """Ask the rule whether it applies to this evidence."""
        self._attempt(self._ask_rule)

    def check(self, severity: Severity | None) -> None:
        """Run the rule's check and collect its findings."""
        self._attempt(partial(self._collect_findings, severity))

    def answer_for_asked(self) -> None:
        """Let a rule that the user named never be silent: what it could not check makes the report incomplete."""
        if self.skipped is not None:
            self.skipped, self.crashed = None, self.skipped
        elif not self.applies and self.crashed is None:
            self.skipped = DOES_NOT_APPLY

    def _ask_rule(self) -> None:
        self.view = self.evidence.view_for(self.rule.on)
        self.applies = self.view is not None and (self.rule.when is None or bool(self.rule.when(self.view)))
        if self.view is not None and not self.applies:
            # `when` failed, so it is unknown whether the rule applies.
            self.skipped = self.evidence.explain_unread(self.view) or None

    def _collect_findings(self, severity: Severity | None) -> None:
        # Before the file of the rule runs, which a scan of headers need not import.
        self.evidence.require(self.rule.on)
        # Collect one by one, to keep the findings from before a crash.
        for problem in self.rule.check(self.view):
            self.findings.append(finding := _finding(self.rule, severity, problem, self.lists))
            if problem.follows and severity is None:
                self.follows[finding] = problem.follows
        if not self.findings:
            self.skipped = self.evidence.explain_unread(self.view) or None
        self.passed = not self.findings and self.skipped is None

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do some work, and record why it could not be done to the end."""
        try:
            work()
        except Skip as skip:
            # A rule has one outcome, and its findings say more than the reason of a skip.
            if not self.findings:
                self.skipped = str(skip)
                self.skipped_for_damage = isinstance(skip, SkipForDamage)
        except EvidenceError as error:
            self.crashed = error.message
        except Exception as error:
            # A rule may raise anything; that must not stop the others.
            self.crashed = _describe_crash(error)


DOES_NOT_APPLY = "it does not apply to this target"
"""Why a rule that the user asked for by name did not run."""
NOTHING_LOOKED = "no selected rule looked at this target"
"""The error of a report whose rules all were skipped, or did not apply."""
VALUES = "values"
"""The kind of rules that run last, because other processes may still be reading the values."""
MAY_WAIT = ("QNT", "TOK", "MOE", "EMB")
"""Families on other evidence of which some rules wait for values too; they run before the rules on values, in this order."""


def run_rules(
    evidence: Evidence,
    rules: Iterable[Rule],
    *,
    ignored: Mapping[str, str] | None = None,
    severities: Mapping[str, Severity] | None = None,
    asked: Collection[str] = (),
    note_partial: Callable[[Report], None] | None = None,
) -> Report:
    """Run every rule that applies to the evidence; a rule that fails is reported and the others still run.

    Args:
        evidence: what the rules check.
        rules: the rules to run; a rule for which the evidence has no view does not apply.
        ignored: code → reason, for rules that the user ignores.
        severities: code → severity, if it differs from the rule's own.
        asked: codes of rules that the user asked for by name; one that applies and cannot check makes the report incomplete.
        note_partial: called with the report so far before the rules that wait for values; it is incomplete.
    """
    with remember_lists() as lists:
        return _run_each(evidence, rules, ignored, severities, asked, note_partial, lists)


def note_unanswered(reports: Sequence[Report], wanted: Mapping[str, Collection[str]]) -> list[Report]:
    """Return the reports, incomplete where none of them answers what the user asked for by name.

    wanted: what is then said → codes of rules, of which one has to run on one of the targets.
    """
    ran = {code for report in reports for code in report.passed}
    ran |= {code for report in reports for code, _ in report.crashed}
    ran |= {finding.code for report in reports for finding in report.findings}
    if not (error := "; ".join(sentence for sentence, codes in wanted.items() if ran.isdisjoint(codes))):
        return [*reports]
    return [structs.replace(report, error=report.error or error, next_step="") for report in reports]


def _run_each(
    evidence: Evidence,
    rules: Iterable[Rule],
    ignored: Mapping[str, str] | None,
    severities: Mapping[str, Severity] | None,
    asked: Collection[str],
    note_partial: Callable[[Report], None] | None,
    lists: Mapping[str, tuple[str, ...]],
) -> Report:
    """Run the rules. lists: those that messages name the beginning of."""
    runs = [RuleRun(rule, evidence, lists) for rule in rules]
    # Ask all rules first, so that what this computes is there before any rule waits for values.
    for run in runs:
        run.decide_applies()
    ordered = sorted(runs, key=lambda run: _find_turn(run.rule))
    noted = 0
    for run in ordered:
        if note_partial is not None and run.applies and _find_turn(run.rule) > noted:
            noted = _find_turn(run.rule)
            note_partial(_build_report(evidence, ordered[: ordered.index(run)], ignored, interrupted=True))
        if run.applies and ignored and run.rule.code in ignored:
            run.skipped = ignored[run.rule.code]
        elif run.applies:
            run.check((severities or {}).get(run.rule.code))
        if run.rule.code in asked and run.rule.code not in (ignored or {}):
            run.answer_for_asked()
    return _build_report(evidence, runs, ignored)


def _find_turn(rule: Rule) -> int:
    """Return 0 for a rule that waits for no values, and a larger number the longer it may wait."""
    family = rule.code[:3]
    return len(MAY_WAIT) + 1 if rule.on == VALUES else MAY_WAIT.index(family) + 1 if family in MAY_WAIT else 0


def _build_report(
    evidence: Evidence, runs: Sequence[RuleRun], ignored: Mapping[str, str] | None, *, interrupted: bool = False
) -> Report:
    """Return the report of rules that ran. interrupted: the rules about values did not."""
    findings = _fold(runs)
    passed = [run.rule.code for run in runs if run.passed]
    skipped = [(run.rule.code, run.skipped) for run in runs if run.skipped is not None]
    crashed = [(run.rule.code, run.crashed) for run in runs if run.crashed is not None]
    error = None if passed or findings or crashed else NOTHING_LOOKED
    if error is None and not _tells_damage(runs, ignored or {}):
        error = next((run.skipped for run in runs if run.skipped_for_damage), None)
    if interrupted:
        error = "interrupted before its values were checked"
    if evidence.unread:
        by_reason: dict[str, list[str]] = {}
        for name, reason in evidence.unread.items():
            by_reason.setdefault(reason, []).append(name)
        listed = join_truncated([f"{join_truncated(names)}: {reason}" for reason, names in by_reason.items()])
        error = f"could not {evidence.failed_to} {listed}"
        # A rule that passed may have missed something in an unreadable file.
        crashed = [(code, _unify(reason, evidence.unread, error)) for code, reason in crashed]
        crashed += [(code, error) for code in passed]
        skipped = [(code, _unify(reason, evidence.unread, error)) for code, reason in skipped]
        passed = []
    # The sort is stable, so rules keep their order within a severity.
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Report(
        target=evidence.target,
        subject=evidence.subject,
        findings=tuple(evidence.arrange(findings)),
        passed=tuple(passed),
        skipped=tuple(skipped),
        crashed=tuple(crashed),
        error=error,
        unread=tuple(evidence.unread),
        counts=evidence.counts,
        sections=() if interrupted else tuple(evidence.sections),
        read=evidence.reading,
        identities=evidence.identities,
        headline=evidence.headline if all(finding.severity == "info" for finding in findings) else "",
    )


def _fold(runs: Sequence[RuleRun]) -> list[Finding]:
    """Return the findings of all rules; one that follows from another rule's is an info that points to it."""
    found = {run.rule.code for run in runs if any(finding.severity != "info" for finding in run.findings)}
    folded: list[Finding] = []
    for run in runs:
        for finding in run.findings:
            cause = next((code for code in run.follows.get(finding, ()) if code in found), None)
            folded.append(
                structs.replace(finding, severity="info", hint=f"mend what {cause} names")
                if cause is not None
                else finding
            )
    return folded


def _tells_damage(runs: Iterable[RuleRun], ignored: Mapping[str, str]) -> bool:
    """Whether an error rule has findings, which may report the damage behind other rules' skips, or the user ignores one."""
    return any(
        run.rule.severity == "error" and (run.findings or (run.applies and run.rule.code in ignored)) for run in runs
    )


def _unify(reason: str, files: Iterable[str], error: str) -> str:
    """Return `error` for a reason about one of these files, so that reporters print it once."""
    return error if any(file in reason for file in files) else reason


def _finding(rule: Rule, chosen: Severity | None, problem: Problem, lists: Mapping[str, tuple[str, ...]]) -> Finding:
    severity = chosen or problem.severity or rule.severity
    return Finding(
        rule.code,
        rule.name,
        severity,
        problem.message,
        problem.file,
        problem.key,
        problem.hint,
        problem.line,
        tuple(problem.names) or find_listed(problem.message, lists),
    )


def _describe_crash(error: BaseException) -> str:
    if (shortage := describe_shortage(error)) is not None:
        return shortage
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}, line {where.lineno})"
