"""Two places for the numbers and findings of syncs that belong to no tracker: a file that Prometheus reads, and a webhook."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

from ckptcheck.linter.rule import Finding
from ckptcheck.text.file_io import replace_file

PATIENCE = 10.0
"""Seconds for a webhook to answer."""


class PrometheusFile:
    """A file of Prometheus' text format (0.0.4), which the textfile collector of its node_exporter reads.

    Each sync replaces it as a whole. A name such as ``ckptcheck/sent_changed`` becomes ``ckptcheck_sent_changed``; findings are
    counted by ``ckptcheck_findings_total``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._findings: Counter[tuple[str, str, str]] = Counter()
        self._lines: list[str] = []

    def find_run(self) -> None:
        """Need no run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the numbers of a sync."""
        self._lines = []
        for name, value in {**values, "ckptcheck/step": float(step)}.items():
            own = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
            self._lines += [f"# TYPE {own} gauge", f"{own} {value!r}"]
        self._write()

    def alert(self, finding: Finding, step: int) -> None:
        """Count a finding."""
        self._findings[finding.code, finding.name, finding.severity] += 1
        self._write()

    def _write(self) -> None:
        lines = [*self._lines, "# TYPE ckptcheck_findings_total counter"]
        for (code, name, severity), number in sorted(self._findings.items()):
            lines.append(f'ckptcheck_findings_total{{code="{code}",name="{name}",severity="{severity}"}} {number}')
        replace_file(self._path, ("\n".join(lines) + "\n").encode())


class Webhook:
    """An address that gets each finding as JSON: ``text`` for Slack and Mattermost, ``content`` for Discord, and its parts."""

    def __init__(self, address: str) -> None:
        self._address = address

    def find_run(self) -> None:
        """Need no run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send nothing: numbers are for a tracker."""

    def alert(self, finding: Finding, step: int) -> None:
        """Send a finding. Raises OSError where the address does not take it."""
        text = f"ckptcheck: {finding.severity} {finding.code} {finding.name}, sync of step {step}: {finding.message}"
        body = {
            "text": text, "content": text[:1900], "code": finding.code, "name": finding.name, "severity": finding.severity,
            "step": step, "message": finding.message, "key": finding.key, "hint": finding.hint,
        }  # fmt: skip
        request = Request(
            self._address, json.dumps(body).encode(), {"Content-Type": "application/json", "User-Agent": "ckptcheck"}
        )
        with urlopen(request, timeout=PATIENCE):  # an http address, as `open_sinks` saw
            pass
