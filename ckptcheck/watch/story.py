"""What a watch says of itself in the job's log: one line when it begins, one at the end, and one when it cannot look for long."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from pathlib import Path

from ckptcheck.linter.report import Report
from ckptcheck.runs.history.record import SyncRecord
from ckptcheck.text.formatting import count
from ckptcheck.watch.schedule import WITHIN, Coverage

HEARTBEAT = 10
"""Syncs without a look at any tensor after which the watch says so, and again after as many."""


class Story:
    """What has happened since the watch began."""

    def __init__(self) -> None:
        self.trouble = ""
        """The last thing that went wrong with the watch itself."""
        self.blind = 0
        """Syncs in a row at which it wanted to look at the weights, and saw none."""
        self._blind_since = ""
        self._syncs = 0
        self._checked = 0.0
        self._began = time.monotonic()
        self._codes: Counter[str] = Counter()
        self._severities: Counter[str] = Counter()

    def add(self, sync: SyncRecord, report: Report | None, *, looks: bool) -> str:
        """Add a sync that was checked, and return the line that is due: after the first one, "" for none."""
        for finding in report.findings if report is not None else ():
            self._codes[finding.code] += 1
            self._severities[finding.severity] += 1
        if sync.missing:
            return ""
        self._syncs += 1
        self._checked += sync.checked
        if looks and sync.ok:
            is_blind = not (sync.is_digested or sync.payload)
            self._blind_since = self._blind_since if self.blind else _label(sync, self._syncs)
            self.blind = self.blind + 1 if is_blind else 0
        return _describe_start(sync) if self._syncs == 1 else ""

    def describe_blindness(self) -> str:
        """Return what to say where the watch sees nothing for long, "" for nothing."""
        if not self.blind or self.blind % HEARTBEAT:
            return ""
        why = (
            f": it {self.trouble}" if self.trouble.startswith("could") else f": {self.trouble}" if self.trouble else ""
        )
        return f"it has seen no weights for {self.blind} syncs, since {self._blind_since}{why}"

    def describe_end(self, coverage: Coverage, record: Path | None) -> str:
        """Return one line for the end of the job: the syncs, what was looked at, and the verdict."""
        if not self._syncs:
            return "saw no sync: either none took place, or the job syncs by a call that is not watched"
        looked = "nothing was looked at"
        if coverage.share is not None:
            seen, passed = coverage.counts
            looked = f"{seen:,} of {count(passed, 'tensor')} looked at within the last {min(self._syncs, WITHIN)}"
        codes = ", ".join(sorted(self._codes))
        found = " and ".join(
            count(self._severities[name], name) for name in ("error", "warning") if self._severities[name]
        )
        share = self._checked / max(time.monotonic() - self._began, 1e-9)
        parts = [
            f"{count(self._syncs, 'sync')}, {looked}",
            f"{found} ({codes})" if found else "no findings",
            f"it held the job up for {share:.2%} of the time",
            *([f"ckptcheck refit history {record}"] if record is not None else []),
        ]
        return "; ".join(parts)


def _describe_start(sync: SyncRecord) -> str:
    """Return one line about what is watched. sync: the first one."""
    trainer = sync.trainer or "the trainer"
    what = f"what {trainer} sends ({count(len(sync.sent), 'tensor')}, {sync.nbytes / 1e6:,.3g} MB)" if sync.sent else ""
    held = f"what {sync.engine} holds ({count(len(sync.held), 'tensor')})" if sync.held else ""
    logged = f"what the job logs ({sync.gap.name})" if sync.gap is not None and not what else ""
    return " and ".join(part for part in (what, held, logged) if part) or "only that a sync takes place"


def _label(sync: SyncRecord, number: int) -> str:
    return f"sync {number}" if sync.step is None else f"step {sync.step}"


def tell(line: str) -> None:
    """Write a line into the job's log. A job without one goes on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"ckptcheck.watch: {line}\n")
        sys.stderr.flush()
