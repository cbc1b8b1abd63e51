"""SARIF 2.1.0, which GitHub code scanning and editors read: one run, whatever the number of targets.

A file's path is relative to the repository; a file on the Hub has its path there, relative to the Hub's address,
because code scanning refuses a whole upload for one location with another scheme. A location in a text has a line, the first
where the finding names none; a shard has none, because a line would make the upload action read it whole to fingerprint it.

The reason why a rule could not look is a notification. A run with a crashed rule, or a target that could not be
checked, is marked as unsuccessful; code scanning then keeps the alerts it has instead of closing those it no longer
sees.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ckptcheck import __version__
from ckptcheck.checkpoint.hub_address import shown_endpoint
from ckptcheck.linter.report import Report, describe_reading
from ckptcheck.linter.rule import Finding, Rule, Severity
from ckptcheck.linter.rule_loader import builtin_rule_folder
from ckptcheck.reporters.json import escape_deceptive
from ckptcheck.reporters.locations import HUB, encode_uri, path_of, path_on_hub, root_folder, select_side
from ckptcheck.reporters.printable import printable

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
ROOT = "%SRCROOT%"
WEB = "HUB"
PAGES = "https://github.com/ckptcheck/ckptcheck/blob/main/rules/"
"""Where a reader finds the built-in rules: each file begins with its page. The site has no address before a release."""
TEXTS = (".json", ".jsonl", ".yaml", ".yml", ".toml", ".sh", ".py", ".jinja", ".txt", ".md")
"""Endings of files with lines."""
MOST = 1024
"""Characters of a description that code scanning takes."""


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports as one SARIF run."""
    descriptors = _descriptors(reports, rules)
    index = {descriptor["id"]: number for number, descriptor in enumerate(descriptors)}
    occurrences: Counter[str] = Counter()
    run = {
        "tool": {"driver": {"name": "ckptcheck", "version": __version__, "rules": descriptors}},
        "invocations": [
            {
                "executionSuccessful": all(report.verdict != "incomplete" for report in reports),
                "toolExecutionNotifications": [note for report in reports for note in _notifications(report)],
            }
        ],
        "originalUriBaseIds": _bases(reports),
        "results": [result for report in reports for result in _results(report, index, occurrences)],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return escape_deceptive(json.dumps(log, indent=2, ensure_ascii=False)) + "\n"


def _descriptors(reports: Sequence[Report], rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Describe the rules that found something."""
    names = {finding.code: finding.name for report in reports for finding in report.findings}
    described = [_descriptor(rule) for rule in rules if rule.code in names]
    unknown = sorted(names.keys() - {rule.code for rule in rules})
    return described + [{"id": code, "shortDescription": {"text": names[code]}} for code in unknown]


def _descriptor(rule: Rule) -> dict[str, Any]:
    page = rule.explanation.strip() or rule.name
    return {
        "id": rule.code,
        "name": "".join(word[:1].upper() + word[1:] for word in re.split(r"[^0-9A-Za-z]+", rule.name)),
        "shortDescription": {"text": _cut(rule.summary or rule.name)},
        "fullDescription": {"text": _cut(_first_paragraph(page))},
        **_link_page(rule),
        "help": {"text": f"{_cut(rule.summary or rule.name)} See ckptcheck rule {rule.code}.", "markdown": page},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def _link_page(rule: Rule) -> dict[str, str]:
    """Return the address of the page of a rule that comes with ckptcheck; nothing for a user's own."""
    folder = builtin_rule_folder()
    if rule.path is None or not rule.path.is_relative_to(folder):
        return {}
    return {"helpUri": PAGES + rule.path.relative_to(folder).as_posix()}


def _first_paragraph(page: str) -> str:
    """The text after the summary, without headings."""
    body = re.sub(r"^#.*$", "", page.partition("\n")[2], flags=re.MULTILINE)
    paragraphs = (" ".join(block.split()) for block in body.split("\n\n"))
    return next(filter(None, paragraphs), page)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def _results(report: Report, index: dict[str, int], occurrences: Counter[str]) -> Iterator[dict[str, Any]]:
    """Describe the findings of a report. occurrences: how many of each place and identity the run has; it goes on counting.

    Two targets may name one file, by its absolute path; code scanning would take equal results there for one.
    """
    for finding in report.findings:
        # Not the message: it may name numbers that change with every checkpoint, and the alert would not be the same.
        identity = json.dumps([finding.code, finding.file, finding.key])
        location = _location(report.target, finding.file, finding.key, finding.line)
        place = f"{location['physicalLocation']['artifactLocation']['uri']} {identity}"
        occurrences[place] += 1
        digest = hashlib.sha256(identity.encode("ascii")).hexdigest()[:16]
        yield {
            "ruleId": finding.code,
            "ruleIndex": index[finding.code],
            "level": LEVELS[finding.severity],
            "message": {"text": _sentences(finding)},
            "locations": [location],
            **({"properties": {"names": [printable(name) for name in finding.names]}} if finding.names else {}),
            "partialFingerprints": {"primaryLocationLineHash": f"{digest}:{occurrences[place]}"},
        }


def _sentences(finding: Finding) -> str:
    """The key (code scanning shows no logical location), the message and the hint."""
    text = finding.message if not finding.key or finding.key in finding.message else f"{finding.key}: {finding.message}"
    return _plain(f"{text}. Hint: {finding.hint}." if finding.hint else f"{text}.")


def _plain(text: str) -> str:
    """Write a message without placeholders ({0}) and links ([text](target)), even if a tensor's name contains one."""
    return printable(text).replace("{", "{{").replace("}", "}}").replace("](", "] (")


def _location(target: str, file: str | None, key: str | None = None, line: int | None = None) -> dict[str, Any]:
    target = select_side(target, file)
    if target.startswith(HUB):
        text = _plain(f"{file or 'the repository'} of {target}")
        artifact: dict[str, Any] = {"uri": path_on_hub(target, file), "uriBaseId": WEB, "description": {"text": text}}
    else:
        artifact = {"uri": encode_uri(path_of(target, file))}
        if "://" not in artifact["uri"]:
            artifact["uriBaseId"] = ROOT
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": artifact}}
    if line or (file or "").endswith(TEXTS):
        location["physicalLocation"]["region"] = {"startLine": line or 1}
    if key:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(key)}]
    return location


def _bases(reports: Sequence[Report]) -> dict[str, Any]:
    """Return what relative locations are relative to, so that a viewer can open them where the report was written."""
    folder = {"text": "The repository, or the folder ckptcheck ran in."}
    bases: dict[str, Any] = {ROOT: {"uri": encode_uri(root_folder().rstrip("/") + "/"), "description": folder}}
    if any(HUB in report.target for report in reports):
        bases[WEB] = {"uri": shown_endpoint() + "/", "description": {"text": "The Hugging Face Hub."}}
    return bases


def _notifications(report: Report) -> Iterator[dict[str, Any]]:
    where = {"locations": [_location(report.target, None)]}
    if reading := describe_reading(report):
        text = "; ".join(f"{label}: {value}" for label, value in reading)
        yield {"level": "note", "message": {"text": _plain(f"read of {report.target}: {text}")}, **where}
    if report.error:
        text = f"{report.target} could not be checked: {report.error}"
        yield {"level": "error", "message": {"text": _plain(text)}, **where}
    for level, fate, pairs in (("error", "could not check", report.crashed), ("note", "skipped", report.skipped)):
        for code, reason in report.other_reasons(pairs):
            text = _plain(f"{code} {fate} {report.target}: {reason}")
            rule = {"id": code}
            yield {"level": level, "message": {"text": text}, "associatedRule": rule, **where}
