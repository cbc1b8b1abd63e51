"""One watched sync: shows the watch what is sent, and reads what the engine holds afterwards.

Its own failures are warnings: a watch must not end a training run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, overload

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.runs.history.record import SyncRecord, run_id
from ckptcheck.watch.engine_side import EngineSelection, read_engine, read_parts
from ckptcheck.watch.payload import find_tensors
from ckptcheck.watch.planned_copies import PlannedCopy
from ckptcheck.watch.schedule import LEAST_SECONDS, NEGLIGIBLE
from ckptcheck.watch.set_identity import SetIdentity
from ckptcheck.watch.sync_check import SyncCheck
from ckptcheck.watch.tensor_digests import SyncDigests, Weights
from ckptcheck.watch.watch_state import SyncWarning, WatchState


class Syncing:
    """One watched sync. ``with`` calls `before` and `after`; code without a place for a block calls them itself."""

    def __init__(
        self, watch: WatchState, step: int | None, loss: float | None, version: str | None, *, whole: bool
    ) -> None:
        self._watch, self._whole, self._number = watch, whole, watch.number
        self._sync = SyncRecord(step=step, loss=loss, version=version, trainer=watch.trainer, run=run_id())
        self._began = self._checking = 0.0
        self._unseen = self._over = False
        self._given = self._taken = 0
        self._shapes: dict[str, Sequence[int]] = {}
        """Name of each tensor that was sent → its shape, () where the tensor was not looked at."""
        self._rows: dict[str, slice | None] = {}
        """Name of each tensor that was looked at as it was sent → the rows that were, None for all."""
        self._copies: Mapping[str, PlannedCopy] = {}
        """What to copy of the tensors that are looked at, as far as they were seen before."""
        self._left_out: Collection[str] = ()
        """Names of tensors of which nothing but that they were sent is noted."""
        self._asked = self._reading = 0.0
        self._is_over_budget = False
        self._is_in_background = watch.is_in_background
        self._sent, self._held, self._payload = (SyncDigests(defers=self._is_in_background) for _ in range(3))
        self._payloads = 0
        self._sent_set, self._held_set = SetIdentity(), SetIdentity()
        self._naming = 0.0
        if whole:
            watch.schedule.begin()
            self._sync.group = watch.schedule.label
            if not watch.names_sets:
                self._left_out = watch.schedule.left_out
            if self._is_in_background:
                self._copies = watch.copy_plan.list_copies(watch.schedule, watch.choose_sent_rows)
        self._added: dict[str, float] = {}
        self._checked: SyncCheck | None = None

    @property
    def report(self) -> Report | None:
        """The findings; None before `after`, and if the watch checked nothing. Waits for a check in the background."""
        if self._checked is None:
            return None
        self._watch.thread.wait()
        return self._checked.report

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
        handed: list[Any] = []
        for item in weights:
            self._see(item)
            handed.append(item)
            del item
            # nothing here keeps it while the caller works with it, or while the next one is made
            yield handed.pop()

    async def _stream(self, weights: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._taken += 1
        handed: list[Any] = []
        async for item in weights:
            self._see(item)
            handed.append(item)
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
        """Note that only a part of what is sent passes here. why: the reason, for the record and for a finding (HIS011)."""
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
        sync.seconds = time.monotonic() - self._began - self._checking - self._naming
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
            self._sent.clear()
            self._payload.clear()
        has_expected = self._whole and not is_ending and watch.expected is not None
        if has_expected and not watch.attempt("digest what the trainer expects", self._expect):
            self._sent.clear()
        if watch.engine is not None:
            sync.engine, sync.alike = watch.engine.name, watch.engine.alike
            is_asked = not is_ending and self._version() and self._whole
            if is_asked and not watch.attempt("ask the engine for its weights", self._hold):
                self._held.clear()
        probe = watch.probe
        if probe is not None and error is None and (self._number - 1) % max(1, probe.every) == 0:
            watch.attempt("compare the logprobs of both sides", self._probe)
        if watch.names_sets and not is_ending:
            watch.attempt("name the weights by their content", self._name_sets, once=True)
        if self._is_over_budget or not watch.attempt("copy what it looks at", self._copy_to_host):
            for digests in (self._sent, self._held, self._payload):
                digests.clear()
        sync.checked = self._checking + self._naming + time.monotonic() - began
        if self._whole and error is None:
            spent = float("inf") if self._is_over_budget else self._checking + self._reading
            watch.schedule.note(spent, sync.seconds, LEAST_SECONDS if self._is_in_background else NEGLIGIBLE)
        self._check(error, is_ending)

    def _check(self, error: BaseException | None, is_ending: bool) -> None:
        """Have the sync checked, here or in the background."""
        watch = self._watch
        self._checked = SyncCheck(
            watch,
            self._sync,
            {"sent": self._sent, "held": self._held, "payload": self._payload},
            self._added,
            is_in_background=self._is_in_background,
        )
        for sink in watch.sinks:
            watch.attempt("find the run of its numbers", sink.find_run)
        watch.nbytes = max(watch.nbytes, self._sent.nbytes, self._held.nbytes, self._payload.nbytes)
        if not self._is_in_background or is_ending:
            self._checked.run(error)
            return
        try:
            is_taken = watch.thread.submit(partial(self._checked.run, error), watch.schedule.budget)
            if not is_taken:
                watch.say(
                    "the job syncs faster than its weights can be checked, so those of some syncs are not;"
                    " every=n looks at each n-th"
                )
                # the record still has every sync, so that one which was left out does not look like one that never was
                self._checked.leave_out_weights()
                watch.thread.submit(partial(self._checked.run, error), 0.0, always=True)
        except RuntimeError:  # no thread can begin
            self._checked.run(error)

    def _see(self, item: Any) -> None:
        """Look at what is sent, if it is its turn. The job waits meanwhile: of most tensors only the name is noted."""
        if not self._whole or self._unseen or self._over:
            return
        if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str)):
            self._see_payload(item)
            return
        name = item[0]
        self._shapes[name] = ()
        if name in self._left_out:
            return
        watch, tensor = self._watch, item[1]
        if watch.names_sets:
            began = time.monotonic()
            watch.attempt(f"sum {name}", partial(self._add_to_set, name, tensor), once=True)
            self._naming += time.monotonic() - began
        plan = self._copies.get(name)
        if (plan is None and not watch.schedule.includes(name)) or self._stops():
            return
        # the time of the thread would tell it better on a busy machine, but asking for it may take longer than the digest
        began = time.monotonic()
        try:
            if plan is not None and self._sent.copy_planned(name, tensor, plan):
                self._shapes[name], self._rows[name] = plan.shape, plan.rows
            else:
                self._digest(name, tensor)
        except Exception as error:
            self._unseen = True
            watch.warn_of(f"digest {name}", error)
        self._checking += time.monotonic() - began

    def _add_to_set(self, name: str, tensor: Any) -> None:
        self._sent_set.add(name, tensor, self._watch.like)

    def _see_payload(self, item: Any) -> None:
        """Digest the tensors of an item that does not tell which weights they change, such as a flush of a delta."""
        began, before = time.monotonic(), len(self._payload)
        if not self._stops():
            is_digested = self._watch.attempt("digest a payload", partial(self._digest_payload, item))
            self._unseen = not is_digested
            if is_digested and len(self._payload) == before:
                self.unseen(f"it comes as {type(item).__name__}, not as names and tensors")
        self._payloads += 1
        self._checking += time.monotonic() - began

    def _digest_payload(self, item: Any) -> None:
        for place, tensor in find_tensors(item):
            self._payload.add(f"{self._payloads}.{place}", tensor)

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
            self._sent.add_digests({name: tensor})
            return
        if hasattr(type(tensor), "full_tensor"):
            raise CkptcheckError("it is sharded over ranks; gather it (full_tensor) before it passes through")
        watch, shape, dtype = self._watch, tensor.shape, tensor.dtype
        self._shapes[name] = shape
        rows, cast = watch.choose_sent_rows(name, shape, dtype)
        self._rows[name] = rows
        self._sent.add(name, tensor, rows, cast=cast)
        if self._is_in_background and getattr(tensor, "is_cpu", False):
            watch.copy_plan.note(name, tensor)

    def _expect(self) -> None:
        assert self._watch.expected is not None
        for name, tensor in self._watch.expected():
            self._digest(name, tensor)

    def _hold(self) -> None:
        assert self._watch.engine is not None
        self._asked = time.monotonic()
        schedule = self._watch.schedule
        selection = EngineSelection(
            (schedule.group, schedule.groups),
            schedule.includes,
            self._choose_rows,
            self._stops_reading,
            defers=self._is_in_background,
        )
        unseen = read_engine(self._watch.engine, self._shapes, self._held, selection)
        self._reading = time.monotonic() - self._asked
        self._sync.unseen = sorted(unseen)

    def _name_sets(self) -> None:
        """Note the identities of what was sent and of what the engine holds; none of a part of the weights."""
        if self._unseen or self._sync.partial or self._payloads or not self._whole:
            return
        self._sync.identity = self._sent_set.compute(self._watch.like)
        if self._sync.identity is None or self._watch.engine is None:
            return
        for name, tensor in read_parts(self._watch.engine, self._shapes):
            if name in self._shapes:
                self._held_set.add(name, tensor, self._watch.like)
        if self._held_set.has_tensors_of(self._sent_set):
            self._sync.held_identity = self._held_set.compute(self._watch.like)

    def _copy_to_host(self) -> None:
        for digests in (self._sent, self._held, self._payload):
            digests.move_to_host()

    def _probe(self) -> None:
        assert self._watch.probe is not None
        self._sync.probe = self._watch.probe.measure(self._sync.step, self._sync.version)

    def _stops_reading(self) -> bool:
        """Return whether the digests of this sync have taken their time while the engine was read."""
        return self._stops(time.monotonic() - self._asked)

    def _choose_rows(self, name: str, shape: Sequence[int], parameter: Any) -> slice | None:
        """Return the rows to look at of a tensor of the engine, None for all: those that were looked at of what was sent.

        shape: of the tensor, which may be a part of the parameter.

        A few rows of a tensor that the engine casts may stay as they are at a small step, so more of it are looked at; and a
        tensor in another shape is looked at whole.
        """
        watch = self._watch
        if self._shapes.get(name) != shape:
            watch.reshaped.add(name)
        if name in watch.reshaped:
            return None
        schedule = watch.schedule
        if name not in watch.unlike or self._sent.casts_too(name):
            return self._rows[name] if name in self._rows else schedule.choose_rows(shape)
        dtype = parameter.dtype
        if name not in watch.otherwise and dtype.is_floating_point and dtype.itemsize > 1:
            watch.casts[name] = dtype
        return schedule.choose_rows_of_cast(shape, dtype.itemsize)

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

        return self._watch.attempt("ask the engine for its version", ask)
