"""The watch: observes the engine before and after each sync, and judges the sync by the record of the last ones.

A watch must not end a training run. Its own failures are warnings. It raises only findings about the weights, and only if the
caller asks for that.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding, Rule
from ckptcheck.refit.history.history import History
from ckptcheck.refit.history.record import KEEP, Record, SyncRecord, run_id
from ckptcheck.watch.engine_side import WatchedEngine, read_engine
from ckptcheck.watch.metrics import PREFIX, Metrics, MetricSink, measure_sync, open_sinks
from ckptcheck.watch.probe import Probe
from ckptcheck.watch.record_claim import claim_record
from ckptcheck.watch.schedule import Schedule

TAIL = 8
"""Number of digested syncs that the rules see, the new one included. ``ckptcheck refit history`` sees all that the file keeps."""

Weights = Iterable[tuple[str, Any]]
"""Pairs of a name with a torch tensor, a numpy array or a digest."""
OnFinding = Literal["warn", "raise"] | Callable[[Finding], None]


class SyncWarning(UserWarning):
    """A finding about a sync, or the reason why the watch could not check it."""


class SyncError(RuntimeError):
    """A sync has error findings. report: all findings of the sync."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__("; ".join(map(_describe_finding, report.findings)))


class Watch:
    """Watches the syncs of one trainer into one engine. Call it for every sync, and use the result in a ``with`` block.

    Args:
        engine: the engine to question after each sync, None for none.
        expected: returns the weights that the engine should hold now, if they do not pass through `Syncing.sent`.
        record: the file to append each sync to, None for none.
        keep: how many syncs the file keeps.
        every: digest the weights only at every n-th sync; the watch asks for the version at each.
        probe: fixed sequences that both sides score after every n-th sync, None for none.
        share: the part of a sync's time that digests may take. If they take more, and more than 20 ms, the watch looks at a fifth
            of the tensors at a sync, and at each at least every tenth sync.
        budget: seconds that the digests of a sync may take at most. What is left then is not looked at, and the next syncs look
            at fewer tensors.
        trainer: the name of the trainer, for the record.
        enabled: False makes the watch do nothing, on all ranks but the first.
        on: what to do with findings: ``warn``, ``raise`` (errors only), or a function that gets each.
        metrics: where the numbers of each sync go, and findings as alerts: ``wandb``, ``trackio`` or ``mlflow`` for the job's own
            run, a run of theirs, a SummaryWriter of TensorBoard, a function of numbers and step, or a list of these.
    """

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
    ) -> None:
        self.engine, self.expected, self.trainer, self.enabled, self.on = engine, expected, trainer, enabled, on
        self.every, self.probe = max(1, every), probe
        self.schedule = Schedule(share, budget)
        # a job may change its folder
        self.record = Record(Path(record).absolute(), keep=keep) if record is not None and enabled else None
        self.sinks = open_sinks(metrics) if enabled else []
        self._keep, self._maker, self._has_claimed = keep, os.getpid(), False
        self.last: list[SyncRecord] = []
        self.number = 0
        self.said: set[str] = set()
        self._rules: list[Rule] = []
        self._findings: set[Finding] = set()

    def __call__(self, *, step: int | None = None, loss: float | None = None, version: str | None = None) -> Syncing:
        """Return the watch of one sync.

        step: optimizer steps that the trainer has taken. loss: its last loss. version: the weight version that the sync gives
        the engine, for an engine that does not report it.
        """
        self.number += 1
        return Syncing(self, step, loss, version, whole=self.enabled and (self.number - 1) % self.every == 0)

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
        if message not in self.said:
            self.said.add(message)
            warnings.warn(f"ckptcheck.watch: {message}", SyncWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rules, which were loaded from files and cannot be pickled; they are loaded again."""
        return {**self.__dict__, "_rules": []}

    def judge(self, sync: SyncRecord) -> Report:
        """Judge the last syncs, and return only the findings that are new with this one."""
        from ckptcheck.linter import rule_loader
        from ckptcheck.linter.runner import run_rules

        if not self._rules:
            self._rules = [rule for rule in rule_loader.load_rules() if rule.on == "history"]
        target = str(self.record.path) if self.record is not None else "syncs"
        # a finding that comes up because the oldest sync is dropped is not new either
        kept = _keep_tail(self.last, max(TAIL, 2 * self.schedule.groups + 2) - 1)
        old_findings = self._findings | set(
            run_rules(History(target, tuple(kept)), self._rules).findings if kept else ()
        )
        self.last = [*kept, sync]
        report = run_rules(History(target, tuple(self.last)), self._rules)
        self._findings = set(report.findings)
        new_findings = tuple(finding for finding in report.findings if finding not in old_findings)
        return Report(
            report.target,
            report.subject,
            new_findings,
            report.passed,
            report.skipped,
            report.crashed,
            counts=report.counts,
        )


class Syncing:
    """One watched sync. ``with`` calls `before` and `after`; code without a place for a block calls them itself.

    report: the findings; None until `after`, and if the watch checked nothing.
    """

    def __init__(self, watch: Watch, step: int | None, loss: float | None, version: str | None, *, whole: bool) -> None:
        self._watch, self._whole, self._number = watch, whole, watch.number
        self._sync = SyncRecord(step=step, loss=loss, version=version, trainer=watch.trainer, run=run_id())
        self._began = self._checking = 0.0
        self._unseen = self._over = False
        self._given = self._taken = 0
        self._names: set[str] = set()
        self._spent = 0.0
        self._asked = 0.0
        self._is_over_budget = False
        if whole:
            watch.schedule.begin()
            self._sync.group = watch.schedule.label
        self._added: dict[str, float] = {}
        self.report: Report | None = None

    def __enter__(self) -> Syncing:
        self.before()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.after(error)

    def before(self) -> None:
        """Read the engine's weight version, and start the clock."""
        if self._watch.enabled:
            self._version(before=True)
        self._began = time.monotonic()

    @overload
    def sent(self, weights: Weights) -> Iterable[tuple[str, Any]]: ...

    @overload
    def sent(self, weights: AsyncIterable[tuple[str, Any]]) -> AsyncIterator[tuple[str, Any]]: ...

    @overload
    def sent(self, weights: dict[str, Any]) -> dict[str, Any]: ...

    def sent(self, weights: Any) -> Any:
        """Return the weights unchanged, and digest each of them.

        A generator stays a generator, an asynchronous one stays asynchronous; the watch digests their weights as they are
        taken. It digests a dict, list or tuple at once. It returns anything else too, and warns that it cannot see the weights.
        """
        if isinstance(weights, dict | list | tuple):
            for item in weights.items() if isinstance(weights, dict) else weights:
                self._see(item)
            return weights
        if hasattr(weights, "__aiter__"):
            self._given += 1
            return self._stream(weights)
        if hasattr(weights, "__iter__"):
            self._given += 1
            return self._walk(weights)
        self.unseen(f"{type(weights).__name__} is no series of names and tensors")
        return weights

    def _walk(self, weights: Iterable[Any]) -> Iterator[Any]:
        self._taken += 1
        for item in weights:
            self._see(item)
            handed = [item]
            del item
            # nothing here keeps it while the caller works with it, or while the next one is made
            yield handed.pop()

    async def _stream(self, weights: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._taken += 1
        async for item in weights:
            self._see(item)
            handed = [item]
            del item
            yield handed.pop()

    def chunks(self, chunks: Iterable[Iterable[tuple[str, Any]]]) -> Iterator[Any]:
        """Yield the buckets of weights unchanged and in the same order, and digest the weights in them."""
        for chunk in chunks:
            handed = [self._see_bucket(chunk)]
            del chunk
            yield handed.pop()

    def _see_bucket(self, chunk: Iterable[tuple[str, Any]]) -> Any:
        items = chunk if isinstance(chunk, list | tuple) else list(chunk)
        for item in items:
            self._see(item)
        return items

    def add_numbers(self, **values: float) -> None:
        """Add numbers of your own to those that `Watch(metrics=...)` sends, such as the parity of a probe: ``parity=0.002``."""
        self._added |= values

    def partly(self, why: str) -> None:
        """Note that only a part of what is sent passes here. why: the reason, for the record and for a finding (HIS012)."""
        if not self._over:
            self._sync.partial = why

    def unseen(self, why: str) -> None:
        """Drop the digests of this sync, because not all of its weights pass here. why: the reason; each is warned of once."""
        if self._whole and not self._over:
            self._unseen = True
            if why not in self._watch.said:
                self._watch.said.add(why)
                warnings.warn(f"ckptcheck.watch does not see what is sent: {why}", SyncWarning, stacklevel=3)

    def after(self, error: BaseException | None = None) -> None:
        """Check the engine, append to the record, and report findings. error: the exception of a sync that failed.

        Raises SyncError if the watch has ``on="raise"``, there is an error finding, and the sync itself did not raise.
        """
        watch, sync = self._watch, self._sync
        if not watch.enabled:
            return
        sync.seconds = time.monotonic() - self._began - self._checking
        began = time.monotonic()
        if error is None and self._taken < self._given:
            self.unseen("it was given away and nobody asked for it yet; watch where it is taken")
        self._over = True
        if error is not None:
            sync.ok, sync.message = False, f"{type(error).__name__}: {error}"
        # after Ctrl-C nobody waits for the answers of an engine
        is_ending = error is not None and not isinstance(error, Exception)
        if self._unseen:
            # a part of the digests would look as if the other weights had not been sent
            sync.sent, sync.nbytes = {}, 0
        has_expected = self._whole and not is_ending and watch.expected is not None
        if has_expected and not self._quietly("digest what the trainer expects", self._expect):
            sync.sent, sync.nbytes = {}, 0
        if watch.engine is not None:
            sync.engine, sync.alike = watch.engine.name, watch.engine.alike
            if not is_ending and self._version() and self._whole:
                self._quietly("ask the engine for its weights", self._hold)
        probe = watch.probe
        if probe is not None and error is None and (self._number - 1) % max(1, probe.every) == 0:
            self._quietly("compare the logprobs of both sides", self._probe)
        sync.checked = self._checking + time.monotonic() - began
        if self._is_over_budget:
            sync.sent, sync.held, sync.nbytes = {}, {}, 0
        if self._whole and error is None:
            watch.schedule.note(float("inf") if self._is_over_budget else self._spent, sync.seconds)
        self._quietly("write the record", lambda: watch.append(sync), once=True)
        previous = next((last for last in reversed(watch.last) if last.ok and (last.sent or last.held)), None)
        self._quietly("judge the sync", self._judge)
        for sink in watch.sinks:
            self._quietly("send its numbers", partial(self._measure, sink, previous))
        if self.report is not None:
            self._tell(self.report, error)

    def _see(self, item: Any) -> None:
        if not self._whole or self._unseen or self._over:
            return
        if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str)):
            self.unseen(f"it comes as {type(item).__name__}, not as names and tensors")
            return
        began = time.monotonic()
        self._names.add(item[0])
        if self._watch.schedule.includes(item[0]) and not self._stops():
            cpu_began = time.thread_time()
            self._unseen = not self._quietly(f"digest {item[0]}", lambda: self._digest(item[0], item[1]))
            self._spent += time.thread_time() - cpu_began
        self._checking += time.monotonic() - began

    def _stops(self, more: float = 0.0) -> bool:
        """Return whether the digests of this sync have taken their time. more: seconds since the engine was asked."""
        if not self._is_over_budget and self._checking + more > self._watch.schedule.budget:
            self._is_over_budget = True
            self._watch.say(
                f"digests took more than {self._watch.schedule.budget:g} s (budget) of a sync: it is not checked to its end, and"
                " the next ones look at fewer tensors"
            )
        return self._is_over_budget

    def _digest(self, name: str, tensor: Any) -> None:
        if isinstance(tensor, str):
            self._sync.sent[name] = tensor
            return
        if hasattr(tensor, "full_tensor"):
            raise CkptcheckError("it is sharded over ranks; gather it (full_tensor) before it passes through")
        self._sync.sent[name] = _digest(tensor)
        self._sync.nbytes += tensor.nbytes

    def _expect(self) -> None:
        assert self._watch.expected is not None
        for name, tensor in self._watch.expected():
            self._digest(name, tensor)

    def _hold(self) -> None:
        assert self._watch.engine is not None
        began, self._asked = time.thread_time(), time.monotonic()
        weights = read_engine(self._watch.engine, self._names, self._includes)
        self._spent += time.thread_time() - began
        self._sync.held, self._sync.unseen = dict(weights.digests), sorted(weights.unseen)

    def _probe(self) -> None:
        assert self._watch.probe is not None
        self._sync.probe = self._watch.probe.measure(self._sync.step, self._sync.version)

    def _includes(self, name: str) -> bool:
        """Return whether to look at a tensor of the engine that the trainer sends by this name."""
        return self._watch.schedule.includes(name) and not self._stops(time.monotonic() - self._asked)

    def _judge(self) -> None:
        self.report = self._watch.judge(self._sync)

    def _measure(self, sink: MetricSink, previous: SyncRecord | None) -> None:
        """Send the numbers of the sync, and its findings, to one place."""
        step = self._watch.number if self._sync.step is None else self._sync.step
        added = {f"{PREFIX}{name}": float(value) for name, value in self._added.items()}
        sink.log({**measure_sync(self._sync, previous, self.report), **added}, step)
        for finding in self.report.findings if self.report is not None else ():
            sink.alert(finding, step)

    def _version(self, *, before: bool = False) -> bool:
        """Ask the engine for its version, and return whether it answered."""
        engine, sync = self._watch.engine, self._sync
        if engine is None:
            return False

        def ask() -> None:
            if before:
                sync.before = engine.version()
            else:
                sync.version = engine.version() or sync.version

        return self._quietly("ask the engine for its version", ask)

    def _quietly(self, task: str, action: Callable[[], object], *, once: bool = False) -> bool:
        """Run an action and return whether it succeeded. An exception becomes a warning and does not reach the training loop.

        once: warn of the first failure of this task only.
        """
        try:
            action()
            return True
        except Exception as error:
            message = error.message if isinstance(error, CkptcheckError) else f"{type(error).__name__}: {error}"
            if not once or task not in self._watch.said:
                self._watch.said.add(task)
                warnings.warn(f"ckptcheck.watch could not {task}: {message}", SyncWarning, stacklevel=4)
            return False

    def _tell(self, report: Report, error: BaseException | None) -> None:
        on = self._watch.on
        for finding in report.findings:
            if callable(on):
                self._quietly(f"report {finding.code}", partial(on, finding))
            elif on == "warn" or finding.severity != "error" or error is not None:
                warnings.warn(_describe_finding(finding), SyncWarning, stacklevel=4)
        if on == "raise" and error is None and report.count("error"):
            raise SyncError(report)


def _keep_tail(syncs: list[SyncRecord], number: int) -> list[SyncRecord]:
    """Return the last so many syncs whose weights were digested, and the others from there on."""
    digested = [place for place, sync in enumerate(syncs) if sync.is_digested]
    return syncs[digested[-number] :] if len(digested) >= number else syncs[-10 * number :]


def _describe_finding(finding: Finding) -> str:
    """Return a finding as one line of a log: its code, the tensor unless the message names it, and the message."""
    named = f" ({finding.key})" if finding.key and finding.key not in finding.message else ""
    return f"{finding.code} {finding.message}{named}"


def _digest(tensor: Any) -> str:
    """Digest a torch tensor on its own device, or a numpy array; equal bytes give equal digests."""
    if hasattr(tensor, "data_ptr"):
        from ckptcheck.runtime.worker.ckptcheck_worker.digest import digest as of_torch

        return of_torch(tensor)
    from ckptcheck.runtime.engines.digest import digest as of_numpy

    return of_numpy(tensor)


def digests(weights: Weights) -> Mapping[str, str]:
    """Return name → digest, to send to the rank that keeps the record."""
    return {name: _digest(tensor) for name, tensor in weights}
