"""What a watch knows from one sync to the next: its settings, the last syncs, its warnings; and the rules that judge them.

A watch must not end a training run. Its own failures are warnings. It raises only findings about the weights, and only if the
caller asks for that.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.runs.history.history import build_history
from ckptcheck.runs.history.record import KEEP, GapRecord, LoggedStep, Record, SyncRecord, find_earlier, run_id
from ckptcheck.watch.background_thread import BackgroundThread
from ckptcheck.watch.engine_side import WatchedEngine
from ckptcheck.watch.metrics import Metrics, open_sinks
from ckptcheck.watch.probe import Probe
from ckptcheck.watch.ranks import Ranks
from ckptcheck.watch.record_claim import claim_record
from ckptcheck.watch.schedule import Coverage, Schedule
from ckptcheck.watch.story import Story
from ckptcheck.watch.tensor_digests import Weights

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SMALL = 16 << 20
"""Bytes of weights below which the first syncs are checked before they end: milliseconds, and findings come where they arise."""
FIRST = 16
"""The number of these syncs. What is wrong from the start shows in them, and a small sync takes less time than its check."""
METRICS_PATIENCE = 10.0
"""Seconds for which the end of the process waits for a tracker, whose server may not answer."""
TAIL = 8
"""Least number of digested syncs that the rules see, with the new one. ``ckptcheck refit history`` sees the whole file."""

ASKED = ("name", "alike", "held", "version")
"""What a watch asks of an engine."""

OnFinding = Literal["warn", "raise"] | Callable[[Finding], None]


class SyncWarning(UserWarning):
    """A finding about a sync, or the reason why the watch could not check it."""


class WatchState:
    """Everything that one watch knows from one sync to the next. The arguments are those of `Watch`."""

    def __init__(
        self,
        engine: WatchedEngine | None = None,
        *,
        expected: Callable[[], Weights] | None = None,
        record: Path | str | None = None,
        keep: int = KEEP,
        every: int = 1,
        share: float = 0.02,
        budget: float = 1.0,
        probe: Probe | None = None,
        trainer: str = "",
        enabled: bool = True,
        on: OnFinding = "warn",
        metrics: Metrics = None,
        background: bool | None = None,
        identity: bool | Path | str = False,
    ) -> None:
        check_arguments(engine, on, {"every": every, "share": share, "budget": budget})
        self.engine, self.expected, self.trainer, self.enabled, self.on = engine, expected, trainer, enabled, on
        self.every, self.probe = max(1, every), probe
        self.ranks = Ranks() if on == "raise" else None
        self.names_sets, self._like = bool(identity), None if isinstance(identity, bool) else str(identity)
        self.schedule, self.coverage = Schedule(share, budget), Coverage()
        self.ranges: dict[str, tuple[float, float, int]] = {}
        """See `find_odd`."""
        self.pending_gap: GapRecord | None = None
        """The gap that the job has logged since the last sync."""
        self.pending_step: LoggedStep | None = None
        """What else it has logged of a step since then."""
        self.gaps: list[GapRecord] = []
        """All gaps that it has logged."""
        self.logged_steps: list[LoggedStep] = []
        """All steps of which it has logged something else."""
        self._judged = 0, 0
        """How many of each were judged."""
        self.dtype = ""
        """In which both sides compute, where the adapter knows it."""
        self.record = Record(find_record_path(record), keep=keep) if record is not None and enabled else None
        self.sinks = open_sinks(metrics) if enabled else []
        self._keep, self._maker, self._has_claimed = keep, os.getpid(), False
        self.background, self.nbytes = background, 0
        self._begin_threads()
        self.last: list[SyncRecord] = []
        """The last syncs that were checked."""
        self.number = self.probes = 0
        self.warned: set[str] = set()
        self.names: set[str] = set()
        """Names of the tensors that the trainer sent at any sync: an adapter may come without its base."""
        self.engine_before: dict[str, str] = {}
        """``rank/name`` → digest of what the engine held after the last sync; empty where nobody looked, or the sync failed."""
        self.suspects: frozenset[str] = frozenset()
        """Names that the engine held otherwise than they were sent, of which the next sync keeps a copy to tell how."""
        self.may_look_before = False
        """Whether the engine's memory can be read when a sync begins to send: an engine that sleeps has none."""
        self._rules: list[Rule] = []
        self._reported: set[tuple[str | None, ...]] = set()
        """The `_identify` of each finding on the syncs so far."""
        self._messages: frozenset[str] = frozenset()
        """What was said of them: the message of a finding that lasts changes with each sync."""
        self.errors = 0
        """How many errors the last sync shows, new ones or such that last."""
        self.story = Story()
        self._is_closed = self._is_driver = False

    def _begin_threads(self) -> None:
        self.thread = BackgroundThread()
        self.metrics_thread = BackgroundThread(METRICS_PATIENCE)
        """Sends numbers: no record waits for a tracker that does not answer."""

    @property
    def is_in_background(self) -> bool:
        """Whether a sync is checked after it, in a thread. An error that the watch raises has to come before the sync ends."""
        if self.on == "raise":
            return False
        if self.background is not None:
            return self.background
        return self.number > FIRST or self.nbytes > SMALL

    @property
    def like(self) -> Checkpoint | None:
        """The checkpoint whose config says how weights are called; None where the user named none. Raises CkptcheckError."""
        if isinstance(self._opened_like, CkptcheckError):
            raise self._opened_like
        return self._opened_like

    @cached_property
    def _opened_like(self) -> Checkpoint | CkptcheckError | None:
        """The checkpoint, or why it cannot be opened: each tensor of a sync asks, and a hub that does not answer takes a minute."""
        from ckptcheck.checkpoint.open import open_checkpoint

        try:
            return open_checkpoint(self._like) if self._like is not None else None
        except CkptcheckError as error:
            return error

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all syncs so far are checked and recorded, and their numbers sent; return whether they are.

        seconds: how long at most, for each of the two.
        """
        return self.thread.wait(seconds) and self.metrics_thread.wait(seconds)

    def describe_effort(self) -> str:
        """Return how often the watch looks, what that may cost, and where the record is."""
        often = "every sync" if self.every == 1 else f"each {self.every}th sync"
        cost = f", for at most {self.schedule.share:.2g} of the CPU time of a step" if self.schedule.share < 1 else ""
        record = f"record: {self.record.path}" if self.record is not None else "no record"
        return f"looks at {often}{cost}; {record}"

    def append(self, sync: SyncRecord) -> None:
        """Append a sync to the record; another process that has the file already leaves this one a file beside it.

        A process that was forked after the watch was made continues the file. Raises CkptcheckError and OSError.
        """
        if self.record is None:
            return
        if not self._has_claimed and os.getpid() == self._maker:
            path = claim_record(self.record.path)
            if path != self.record.path:
                self.say(f"another process writes {self.record.path}; this one records to {path}")
                self.record = Record(path, keep=self._keep)
            self._has_claimed = True
        self.record.append(sync)

    def say(self, message: str) -> None:
        """Warn of trouble of the watch itself, once."""
        self.story.trouble = message
        if message not in self.warned:
            self.warned.add(message)
            warnings.warn(f"ckptcheck.watch: {message}", SyncWarning, stacklevel=4)

    def attempt(self, task: str, action: Callable[[], object], *, once: bool = False) -> bool:
        """Run an action and return whether it succeeded. An exception becomes a warning and does not reach the training loop.

        once: warn of the first failure of this task only.
        """
        try:
            action()
            return True
        except Exception as error:
            if not once or task not in self.warned:
                self.warn_of(task, error)
            return False

    def warn_of(self, task: str, error: Exception) -> None:
        """Warn that a task of the watch failed."""
        self.warned.add(task)
        message = error.message if isinstance(error, CkptcheckError) else f"{type(error).__name__}: {error}"
        self.story.trouble = f"could not {task}: {message}"
        warnings.warn(f"ckptcheck.watch could not {task}: {message}", SyncWarning, stacklevel=5)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rules, which were loaded from files, and the threads: neither can be pickled."""
        return {**self.__dict__, "_rules": [], "thread": None, "metrics_thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_threads()

    def judge(self, sync: SyncRecord | None) -> Report:
        """Judge the last syncs, and return only the findings that are new with this one. None: what was logged since."""
        target = str(self.record.path) if self.record is not None else "syncs"
        if sync is not None and not self.last and self.record is not None:
            # a job that goes on after its process ended
            with suppress(OSError, ValueError):
                self.last = find_earlier(self.record.path, sync)
            self._reported = (
                set(map(_identify, self._run_rules(target, self.last, (0, 0)).findings)) if self.last else set()
            )
        most = max(TAIL, 2 * self.schedule.groups + 2)
        kept = _keep_tail(self.last, most - 1) if len(self.last) >= 2 * most else self.last
        old = self._reported
        if len(kept) < len(self.last):
            # dropping the oldest syncs can raise a finding, which is not new either
            before = self._run_rules(target, kept, self._judged)
            old = old | set(map(_identify, before.findings))
            self._messages = _list_errors(before)
        self.last = kept if sync is None else [*kept, sync]
        self._judged = len(self.gaps), len(self.logged_steps)
        report = self._run_rules(target, self.last, self._judged)
        self._reported = set(map(_identify, report.findings))
        messages = _list_errors(report)
        self.errors, self._messages = len(messages - self._messages), messages
        new_findings = tuple(finding for finding in report.findings if _identify(finding) not in old)
        return Report(
            report.target,
            report.subject,
            new_findings,
            report.passed,
            report.skipped,
            report.crashed,
            counts=report.counts,
        )

    def _run_rules(self, target: str, syncs: Sequence[SyncRecord], number: tuple[int, int]) -> Report:
        """Run the rules on syncs, and on so many of the gaps and of the steps that were logged."""
        from ckptcheck.linter import rule_loader
        from ckptcheck.linter.runner import run_rules

        if not self._rules:
            self._rules = [rule for rule in rule_loader.load_rules() if rule.on == "history"]
        gaps, steps = tuple((run_id(), gap) for gap in self.gaps[: number[0]]), self.logged_steps[: number[1]]
        return run_rules(build_history(target, syncs, known_gaps=gaps, logged=steps), self._rules)


def _list_errors(report: Report) -> frozenset[str]:
    return frozenset(f"{each.code} {each.key} {each.message}" for each in report.findings if each.severity == "error")


def _identify(finding: Finding) -> tuple[str | None, ...]:
    """Return the part of a finding that stays the same from sync to sync: code, severity, tensor, and the sync at which it began.

    The rest of its message may change, such as the number of probes for which a gap has lasted.
    """
    begins = re.match(r"(step|sync) \d+: ", finding.message)
    return (finding.code, finding.severity, finding.key, begins[0] if begins else re.sub(r"\d+", "", finding.message))


def _keep_tail(syncs: list[SyncRecord], number: int) -> list[SyncRecord]:
    """Return the last so many syncs whose weights were digested, and the others from there on."""
    digested = [place for place, sync in enumerate(syncs) if sync.is_digested]
    return syncs[digested[-number] :] if len(digested) >= number else syncs[-10 * number :]


def check_arguments(engine: Any, on: Any, numbers: Mapping[str, Any]) -> None:
    """Raise CkptcheckError for what no sync could work with. numbers: `every`, `share` and `budget` by name."""
    if engine is not None and not all(hasattr(engine, name) for name in ASKED):
        hint = (
            "use servers(url, …) for running servers, module(model) for a model in this process, record=… for the file"
        )
        raise CkptcheckError(f"Watch takes an engine first, and {_describe(engine)} is not one", hint)
    if on not in ("warn", "raise") and not callable(on):
        raise CkptcheckError(f"on={on!r} is neither 'warn' nor 'raise' nor a function")
    for name, value in numbers.items():
        is_number = isinstance(value, Integral if name == "every" else Real)
        if not is_number or isinstance(value, bool) or not value >= 0:
            raise CkptcheckError(f"{name}={value!r} is not a {'whole ' if name == 'every' else ''}number of at least 0")


def find_record_path(record: Path | str) -> Path:
    """Return the absolute path of a record: a job may change its folder. Raises CkptcheckError for what names no file."""
    if re.match(r"[a-z][a-z0-9+.-]*://", str(record)):
        raise CkptcheckError(f"a record is a file of this machine, and {record} is an address")
    path = Path(record).expanduser().absolute()
    if not str(record) or path.is_dir():
        raise CkptcheckError(f"record={str(record)!r} is a folder", "name a file in it: syncs.jsonl")
    return path


def convert_number(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a step or a loss as the record can keep it; None for what is no number. A job has them as tensors, too."""
    if value is None or type(value) is convert:
        return value
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _describe(value: Any) -> str:
    return repr(value) if isinstance(value, str | Path) else f"a {type(value).__name__}"
