"""Checks one sync after it, in the background or before the job goes on: the record, the rules, findings and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.runs.history.record import SyncRecord
from ckptcheck.watch.metrics import PREFIX, MetricSink, measure_sync
from ckptcheck.watch.story import tell
from ckptcheck.watch.watch_state import SyncWarning, WatchState


class SyncError(RuntimeError):
    """A sync has error findings. report: all findings of the sync; None on a rank that did not check it."""

    def __init__(self, report: Report | None, message: str = "") -> None:
        self.report = report
        super().__init__(message or "; ".join(map(_describe_finding, report.findings if report is not None else ())))


class SyncCheck:
    """The check of one sync. It uses no device, and nothing that the job changes.

    added: numbers of the job's own, for its metrics. looks: whether the sync was to look at weights.
    report: the findings; None until `run`, and if nothing was checked.
    """

    def __init__(
        self,
        watch: WatchState,
        sync: SyncRecord,
        added: Mapping[str, float],
        *,
        is_in_background: bool,
        looks: bool = True,
    ) -> None:
        self._watch, self._sync, self._added = watch, sync, added
        self._is_in_background, self._looks = is_in_background, looks
        self.report: Report | None = None

    def run(self, error: BaseException | None) -> None:
        """Record the sync, judge it, and report findings. error: the exception of a sync that failed.

        Raises SyncError if the watch has ``on="raise"``, there is an error finding, and the sync itself did not raise.
        """
        watch, sync = self._watch, self._sync
        watch.attempt("write the record", lambda: watch.append(sync), once=True)
        previous = next((last for last in reversed(watch.last) if last.ok and last.is_digested), None)
        watch.attempt("judge the sync", self._judge)
        self._tell_story()
        self._send_numbers(previous)
        if self.report is not None:
            self._tell(self.report, error)

    def _judge(self) -> None:
        self.report = self._watch.judge(self._sync)
        if any(finding.severity != "info" for finding in self.report.findings):
            self._watch.schedule.look_whole()

    def _tell_story(self) -> None:
        watch = self._watch
        if line := watch.story.add(self._sync, self.report, looks=self._looks):
            tell(f"watches {line}; {watch.describe_effort()}")
        if line := watch.story.describe_blindness():
            warnings.warn(f"ckptcheck.watch: {line}", SyncWarning, stacklevel=5)

    def leave_out_weights(self) -> None:
        """Drop the digests, so that the record only says that the sync took place. Call it before `run`."""
        sync = self._sync
        sync.sent, sync.held, sync.payload, sync.cast, sync.nbytes, sync.payload_bytes = {}, {}, {}, {}, 0, 0

    def _send_numbers(self, previous: SyncRecord | None) -> None:
        """Send the numbers: at once, or, for a sync that is checked in the background, in a thread beside the next checks."""
        watch = self._watch
        send = partial(self._send, previous, self.report)
        if not watch.sinks or not self._is_in_background:
            send()
            return
        try:
            is_taken = watch.metrics_thread.submit(send, 0.0)
        except RuntimeError:  # no thread can begin
            send()
            return
        if not is_taken:
            watch.say("the job syncs faster than its tracker takes numbers, so those of some syncs are dropped")

    def _send(self, previous: SyncRecord | None, report: Report | None) -> None:
        for sink in self._watch.sinks:
            self._watch.attempt("send its numbers", partial(self._measure, sink, previous, report))

    def _measure(self, sink: MetricSink, previous: SyncRecord | None, report: Report | None) -> None:
        """Send the numbers of the sync, and its findings, to one place."""
        step = self._watch.number if self._sync.step is None else self._sync.step
        added = {f"{PREFIX}{name}": float(value) for name, value in self._added.items()}
        if not self._sync.missing:
            counts = {"errors": self._watch.errors, "blind": self._watch.story.blind}
            sink.log({**measure_sync(self._sync, previous, report, **counts), **added}, step)
        for finding in report.findings if report is not None else ():
            sink.alert(finding, step)

    def _tell(self, report: Report, error: BaseException | None) -> None:
        on = self._watch.on
        tell_findings(self._watch, report, is_error=error is not None)
        if on == "raise" and error is None and report.count("error"):
            raise SyncError(report)


def tell_findings(watch: WatchState, report: Report, *, is_error: bool) -> None:
    """Hand new findings to the function of the watch, or warn of all but infos. is_error: whether the sync itself failed."""
    for finding in report.findings:
        if callable(watch.on):
            watch.attempt(f"report {finding.code}", partial(watch.on, finding))
        elif finding.severity == "warning" or (finding.severity == "error" and (watch.on == "warn" or is_error)):
            warnings.warn(_describe_finding(finding), SyncWarning, stacklevel=5)


def _describe_finding(finding: Finding) -> str:
    """Return a finding as one line of a log: its code, the tensor unless the message names it, and the message."""
    named = f" ({finding.key})" if finding.key and finding.key not in finding.message else ""
    return f"{finding.code} {finding.message}{named}"
