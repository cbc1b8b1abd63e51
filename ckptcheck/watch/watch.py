"""The watch: before and after a sync, and what the record of the last ones says about it.

A watch must not be what ends a training run. Whatever goes wrong with the watching itself is a warning; only findings about
the weights are raised, and only where the caller asked for that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

from ckptcheck.errors import CkptcheckError
from ckptcheck.history.history import History
from ckptcheck.history.record import KEEP, RUN, Record, Sync
from ckptcheck.report import Report
from ckptcheck.rule import Finding, Rule
from ckptcheck.watch.engine_side import EngineSide

TAIL = 8
"""Syncs that a new one is judged with. The file keeps more; ``ckptcheck refit history`` looks at all of them."""

Weights = Iterable[tuple[str, Any]]
"""Names and what they stand for: torch tensors, numpy arrays, or digests."""
OnFinding = Literal["warn", "raise"] | Callable[[Finding], None]


class SyncWarning(UserWarning):
    """A finding about a sync, or what kept it from being watched."""


class SyncError(RuntimeError):
    """A sync has findings that are errors. report: all of it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__("; ".join(f"{each.code} {each.message}" for each in report.findings))


class Watch:
    """Watches the syncs of one trainer into one engine. Call it for every sync, and use what it returns with ``with``.

    engine: what to ask afterwards, None for nothing. expected: gives the weights the engine should hold, each time, where
    they do not pass through `Syncing.sent`. record: a file to append to, None for none; keep: how many syncs it keeps.
    every: how many syncs lie between two that are looked at; the version is looked at each time. enabled: False makes it do
    nothing, for ranks other than the first. on: what to do with findings: ``warn``, ``raise`` (errors only), or a function.
    """

    def __init__(
        self,
        engine: EngineSide | None = None,
        *,
        expected: Callable[[], Weights] | None = None,
        record: Path | str | None = None,
        keep: int = KEEP,
        every: int = 1,
        trainer: str = "",
        enabled: bool = True,
        on: OnFinding = "warn",
    ) -> None:
        self.engine, self.expected, self.trainer, self.enabled, self.on = engine, expected, trainer, enabled, on
        self.every = max(1, every)
        self.record = Record(record, keep=keep) if record is not None and enabled else None
        self.last: list[Sync] = []
        self.number = 0
        self.said: set[str] = set()
        self._rules: list[Rule] = []

    def __call__(self, *, step: int | None = None, loss: float | None = None, version: str | None = None) -> Syncing:
        """Return one sync to be watched. version: the weight version it gives the engine, where that cannot be asked."""
        self.number += 1
        return Syncing(self, step, loss, version, whole=self.enabled and (self.number - 1) % self.every == 0)

    def judge(self, sync: Sync) -> Report:
        """Return what the rules say about the last syncs with this one, that they did not say without it."""
        from ckptcheck import pack
        from ckptcheck.run import run

        if not self._rules:
            self._rules = [rule for rule in pack.load() if rule.on == "history"]
        target = str(self.record.path) if self.record is not None else "syncs"
        known = set(run(History(target, tuple(self.last)), self._rules).findings) if self.last else set()
        self.last = [*self.last, sync][-TAIL:]
        report = run(History(target, tuple(self.last)), self._rules)
        fresh = tuple(finding for finding in report.findings if finding not in known)
        return Report(
            report.target, report.subject, fresh, report.passed, report.skipped, report.crashed, counts=report.counts
        )


class Syncing:
    """One sync under watch. `before` and `after` are what ``with`` calls, for code that has no place for a block.

    report: what was found, None until `after`, and where nothing was looked at.
    """

    def __init__(self, watch: Watch, step: int | None, loss: float | None, version: str | None, *, whole: bool) -> None:
        self._watch, self._whole = watch, whole
        self._sync = Sync(step=step, loss=loss, version=version, trainer=watch.trainer, run=RUN)
        self._began = self._checking = 0.0
        self._unseen = self._over = False
        self._given = self._taken = 0
        self.report: Report | None = None

    def __enter__(self) -> Syncing:
        self.before()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.after(error)

    def before(self) -> None:
        """Ask for the version the engine has, and start the clock."""
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
        """Pass weights through on their way, and digest each as it passes. Shapes and tensors are left as they are.

        An asynchronous series stays one; a dict, list or tuple is looked at and given back. So is whatever is no series, and then
        nobody knows what was sent.
        """
        if isinstance(weights, dict | list | tuple):
            for each in weights.items() if isinstance(weights, dict) else weights:
                self._see(each)
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
        for each in weights:
            self._see(each)
            yield each

    async def _stream(self, weights: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._taken += 1
        async for each in weights:
            self._see(each)
            yield each

    def chunks(self, chunks: Iterable[Iterable[tuple[str, Any]]]) -> Iterator[Any]:
        """Pass buckets of weights through, the same objects in the same order."""
        for chunk in chunks:
            held = chunk if isinstance(chunk, list | tuple) else list(chunk)
            for each in held:
                self._see(each)
            yield held

    def unseen(self, why: str) -> None:
        """Take back what was seen of the weights that are sent: not all of them pass here. why: said once."""
        if self._whole and not self._over:
            self._unseen = True
            if why not in self._watch.said:
                self._watch.said.add(why)
                warnings.warn(f"ckptcheck.watch does not see what is sent: {why}", SyncWarning, stacklevel=3)

    def after(self, error: BaseException | None = None) -> None:
        """Look at the engine, append to the record, and say what is wrong. error: that of the sync, where it failed.

        Raises SyncError where the watch was told to raise, an error was found, and the sync itself did not raise.
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
        ending = error is not None and not isinstance(error, Exception)  # Ctrl-C: nobody waits for answers now
        if self._unseen:
            sync.sent, sync.nbytes = {}, 0  # a part would look as if the rest had not been sent
        expects = self._whole and not ending and watch.expected is not None
        if expects and not self._quietly("digest what the trainer expects", self._expect):
            sync.sent, sync.nbytes = {}, 0
        if watch.engine is not None:
            sync.engine, sync.alike = watch.engine.name, watch.engine.alike
            if not ending and self._version() and self._whole:
                self._quietly("ask the engine for its weights", self._hold)
        sync.checked = self._checking + time.monotonic() - began
        if watch.record is not None:
            record = watch.record
            self._quietly("write the record", lambda: record.append(sync))
        self._quietly("judge the sync", self._judge)
        if self.report is not None:
            self._tell(self.report, error)

    def _see(self, each: Any) -> None:
        if not self._whole or self._unseen or self._over:
            return
        if not (isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str)):
            self.unseen(f"it comes as {type(each).__name__}, not as names and tensors")
            return
        began = time.monotonic()
        self._unseen = not self._quietly(f"digest {each[0]}", lambda: self._digest(each[0], each[1]))
        self._checking += time.monotonic() - began

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
        self._sync.held = dict(self._watch.engine.held())

    def _judge(self) -> None:
        self.report = self._watch.judge(self._sync)

    def _version(self, *, before: bool = False) -> bool:
        """Ask for the version, and return whether the engine answered."""
        engine, sync = self._watch.engine, self._sync
        if engine is None:
            return False

        def ask() -> None:
            if before:
                sync.before = engine.version()
            else:
                sync.version = engine.version() or sync.version

        return self._quietly("ask the engine for its version", ask)

    def _quietly(self, what: str, do: Callable[[], object]) -> bool:
        """Do something, and return whether it worked; what it raises is said, and does not reach the training loop."""
        try:
            do()
            return True
        except Exception as error:
            message = error.message if isinstance(error, CkptcheckError) else f"{type(error).__name__}: {error}"
            warnings.warn(f"ckptcheck.watch could not {what}: {message}", SyncWarning, stacklevel=4)
            return False

    def _tell(self, report: Report, error: BaseException | None) -> None:
        on = self._watch.on
        for finding in report.findings:
            if callable(on):
                on(finding)
            elif on == "warn" or finding.severity != "error" or error is not None:
                warnings.warn(f"{finding.code} {finding.message}", SyncWarning, stacklevel=4)
        if on == "raise" and error is None and report.number("error"):
            raise SyncError(report)


def _digest(tensor: Any) -> str:
    """Digest a torch tensor where it lies, or a numpy array; equal bytes give equal digits."""
    if hasattr(tensor, "data_ptr"):
        from ckptcheck.host.far.ckptcheck_far.digest import digest as of_torch

        return of_torch(tensor)
    from ckptcheck.engines.digest import digest as of_numpy

    return of_numpy(tensor)


def digests(weights: Weights) -> Mapping[str, str]:
    """Return name → digest, to be sent to the rank that keeps the record."""
    return {name: _digest(tensor) for name, tensor in weights}
