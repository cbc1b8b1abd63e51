"""Puts together what the reports of several files of one whole have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import SEVERITIES, Finding


def group_findings(parts: Sequence[Report], labels: Sequence[str]) -> list[tuple[Finding, list[int]]]:
    """Return for each rule and severity its first finding and the places of the reports that have one, gravest first.

    labels: of the reports; that of its own begins the key of the finding.
    """
    groups: dict[tuple[str, str], tuple[Finding, dict[int, None]]] = {}
    for place, report in enumerate(parts):
        for finding in report.findings:
            key = " · ".join(filter(None, (labels[place], finding.key)))
            groups.setdefault((finding.code, finding.severity), (replace(finding, key=key), {}))[1][place] = None
    found = [(finding, list(places)) for finding, places in groups.values()]
    return sorted(found, key=lambda group: (SEVERITIES.index(group[0].severity), -len(group[1])))


def group_outcomes(parts: Sequence[Report], outcome: Literal["skipped", "crashed"]) -> list[tuple[str, list[str], int]]:
    """Return (reason, codes of the rules, number of reports) of rules that did not run, the commonest first."""
    groups: dict[str, tuple[dict[str, None], set[int]]] = {}
    for place, report in enumerate(parts):
        reasons = [*report.other_reasons(getattr(report, outcome))]
        if outcome == "crashed" and report.error:
            reasons.append(("", report.error))
        for code, reason in reasons:
            codes, places = groups.setdefault(reason, ({}, set()))
            places.add(place)
            codes |= {code: None} if code else {}
    found = [(reason, list(codes), len(places)) for reason, (codes, places) in groups.items()]
    return sorted(found, key=lambda group: -group[2])


def join_labels(places: Sequence[int], labels: Sequence[str], most: int = 4) -> str:
    """Join the labels of places: three and more that follow each other as ``first to last``; a word for what is beyond `most`.

    >>> join_labels([0, 2, 3, 4], ["a", "b", "c", "d", "e"])
    'a, c to e'
    """
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    words: list[str] = []
    for run in runs:
        words += [f"{labels[run[0]]} to {labels[run[-1]]}"] if len(run) > 2 else [labels[place] for place in run]
    return f"{', '.join(words[:most])} and more" if len(words) > most else ", ".join(words)
