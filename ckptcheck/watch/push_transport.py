"""Puts the faults of the conformance kit on the function by which a job syncs its weights."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.watch.engine_side import WatchedEngine

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report

Push = Callable[[Iterable[tuple[str, Any]]], object]
"""Sends weights, pairs of name and tensor, to the engine; an exception is its refusal."""
PATIENCE = 60.0
"""Seconds in which a push that has all weights, or whose sender has died, has to end."""


def try_transport(push: Push, engine: WatchedEngine, weights: Mapping[str, Any]) -> Report:
    """Put faults on a job's own sync, and report how each was answered; see docs/adding-a-transport.md.

    push: sends an iterable of (name, tensor). engine: what `Watch` takes; marks are written only into a module of this process.
    weights: the trainer's weights, which the engine holds afterwards again. It overwrites the engine's weights many times: call it
    before training. Raises CkptcheckError where the kit cannot run.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import run_rules
    from ckptcheck.live.conformance.own_transport import OwnTransport
    from ckptcheck.live.conformance.run import ConformanceRun

    name = f"{getattr(push, '__qualname__', 'push')} → {engine.name}"
    subject = OwnTransport(lambda: PushTransport(push, engine), name, weights)
    return run_rules(ConformanceRun(subject).run(), load_rules())


class PushTransport:
    """A job's sync as a transport of the conformance kit: each update is a call of `push`, in a thread of its own."""

    def __init__(self, push: Push, engine: WatchedEngine) -> None:
        self._push, self._engine = push, engine
        self._calls: list[_PushCall] = []

    def begin(self, version: str, names: Sequence[str]) -> None:
        """Call `push`, which waits for the first bucket."""
        self._calls.append(_PushCall(self._push))

    def send(self, bucket: Mapping[str, Any]) -> None:
        """Let the latest call receive a bucket. Raises what the call raised meanwhile."""
        self._calls[-1].send(bucket)

    def end(self) -> None:
        """Let the latest call end. Raises what it raised."""
        self._calls.pop().finish(None)

    def kill_sender(self) -> None:
        """Let the weights of every call break off with ConnectionError."""
        while self._calls:
            try:
                self._calls.pop().finish(ConnectionError("the sender died"))
            # a dead sender gets no answer
            except Exception:
                continue

    def tensors(self) -> Iterable[tuple[str, Any]]:
        """Return what the engine holds: tensors of a module in this process, digests of any other engine."""
        if callable(tensors := getattr(self._engine, "tensors", None)):
            pairs: Iterable[tuple[str, Any]] = tensors()
            return pairs
        return self._engine.held().items()

    def version(self) -> str | None:
        """Return the version that the engine reports."""
        return self._engine.version()

    def close(self) -> None:
        """End the calls that still wait for weights."""
        self.kill_sender()


class _PushCall:
    """One call of `push`, which takes buckets from a queue."""

    def __init__(self, push: Push) -> None:
        self._queue: queue.Queue[Mapping[str, Any] | BaseException | None] = queue.Queue()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(push,), daemon=True)
        self._thread.start()

    def _run(self, push: Push) -> None:
        try:
            push(self._stream())
        except BaseException as error:
            self._errors.append(error)

    def _stream(self) -> Iterator[tuple[str, Any]]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from item.items()

    def send(self, bucket: Mapping[str, Any]) -> None:
        """Pass a bucket on. Raises what `push` raised."""
        self._queue.put(bucket)
        self._raise_error()

    def finish(self, last: BaseException | None) -> None:
        """End the weights, with an error or without, and wait for `push`. Raises what it raised, TimeoutError where it goes on."""
        self._queue.put(last)
        self._thread.join(PATIENCE)
        self._raise_error()
        if self._thread.is_alive():
            raise TimeoutError(f"push did not return within {PATIENCE:,.0f} s after the last weight")

    def _raise_error(self) -> None:
        if self._errors:
            raise self._errors[0]
