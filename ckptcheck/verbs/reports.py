"""Makes a report of evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.linter.report import Report
    from ckptcheck.linter.rule import Rule
    from ckptcheck.runners.runner import Runner


def add_notes(report: Report, runner: Runner | None) -> Report:
    """Add the events in the cluster that did the work."""
    from ckptcheck.linter.report import add_cluster_notes

    return add_cluster_notes(report, getattr(runner, "notes", ()))


def build_report(
    evidence: Any,
    loaded: Sequence[Rule] | None = None,
    *,
    selected: Sequence[Rule] | None = None,
    ignored: Mapping[str, str] | None = None,
    asked: Collection[str] = (),
    pictures: bool = False,
) -> Report:
    """Run rules over evidence, and draw it if pictures are wanted.

    loaded: all rules; None: the built-in ones. selected: those that run; None: all loaded ones.
    asked: codes of rules that must not be skipped.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import run_rules

    rules = load_rules() if loaded is None else loaded
    report = run_rules(evidence, rules if selected is None else selected, ignored=ignored, asked=asked)
    drawn: tuple[Picture, ...] = ()
    if pictures:
        from ckptcheck.reporters.evidence_pictures import draw_pictures

        drawn = draw_pictures(evidence)
    return replace(report, rules=tuple(rules), pictures=drawn)
