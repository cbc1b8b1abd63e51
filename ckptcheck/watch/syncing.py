"""One watched sync: shows the watch what is sent, reads what the engine holds afterwards, and reports what was found.

Its own failures are warnings: a watch must not end a training run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, overload

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.refit.history.history import tensors_stored_as_sent
from ckptcheck.refit.history.record import SyncRecord, run_id
from ckptcheck.watch.engine_side import read_engine
from ckptcheck.watch.metrics import PREFIX, MetricSink, measure_sync
from ckptcheck.watch.tensor_digests import Weights, digest_rows, digest_tensor
from ckptcheck.watch.watch_state import SyncWarning, WatchState


class SyncError(RuntimeError):
    """A sync has error findings. report: all findings of the sync."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__("; ".join(map(_describe_finding, report.findings)))


class Syncing:
    """One watched sync. ``with`` calls `before` and `after`; code without a place for a block calls them itself.

    report: the findings; None until `after`, and if the watch checked nothing.
    """

    def __init__(
        self, watch: WatchState, step: int | None, loss: float | None, version: str | None, *, whole: bool
    ) -> None:
        self._watch, self._whole, self._number = watch, whole, watch.number
        self._sync = SyncRecord(step=step, loss=loss, version=version, trainer=watch.trainer, run=run_id())
        self._began = self._checking = 0.0
        self._unseen = self._over = False
        self._given = self._taken = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
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
        self._shapes[item[0]] = tuple(getattr(item[1], "shape", ()))
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
        rows = self._watch.schedule.choose_rows(tensor.shape) if name not in self._watch.reshaped else None
        self._sync.sent[name] = digest_tensor(tensor) if rows is None else digest_rows(tensor, rows)
        self._sync.nbytes += tensor.nbytes

    def _expect(self) -> None:
        assert self._watch.expected is not None
        for name, tensor in self._watch.expected():
            self._digest(name, tensor)

    def _hold(self) -> None:
        assert self._watch.engine is not None
        began, self._asked = time.thread_time(), time.monotonic()
        weights = read_engine(self._watch.engine, self._shapes, self._includes, self._choose_rows)
        self._spent += time.thread_time() - began
        self._sync.held, self._sync.unseen = dict(weights.digests), sorted(weights.unseen)
        if self._watch.schedule.parts == 1:
            self._watch.stored_as_sent |= {place.partition("/")[2] for place in tensors_stored_as_sent(self._sync)}

    def _probe(self) -> None:
        assert self._watch.probe is not None
        self._sync.probe = self._watch.probe.measure(self._sync.step, self._sync.version)

    def _includes(self, name: str) -> bool:
        """Return whether to look at a tensor of the engine that the trainer sends by this name."""
        return self._watch.schedule.includes(name) and not self._stops(time.monotonic() - self._asked)

    def _choose_rows(self, name: str, shape: Sequence[int]) -> slice | None:
        """Return the rows to look at of a tensor of the engine, None for all: of one that it holds as sent, those that were."""
        if self._shapes.get(name) != tuple(shape):
            self._watch.reshaped.add(name)
        if name not in self._watch.stored_as_sent or name in self._watch.reshaped:
            return None
        return self._watch.schedule.choose_rows(shape)

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


def _describe_finding(finding: Finding) -> str:
    """Return a finding as one line of a log: its code, the tensor unless the message names it, and the message."""
    named = f" ({finding.key})" if finding.key and finding.key not in finding.message else ""
    return f"{finding.code} {finding.message}{named}"
