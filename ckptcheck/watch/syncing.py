"""One watched sync: digests what the trainer sends, then what the engine holds.

Its own failures are warnings: a watch must not end a training run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, overload

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.runs.history.logged_gap import DRAWN
from ckptcheck.runs.history.record import GapRecord, SyncRecord, run_id
from ckptcheck.watch.engine_side import find_dtype, read_engine, read_parts
from ckptcheck.watch.payload import find_tensors
from ckptcheck.watch.set_identity import SetIdentity
from ckptcheck.watch.sync_check import SyncCheck, SyncError
from ckptcheck.watch.sync_comparison import SyncComparison
from ckptcheck.watch.tensor_digests import SyncDigests, Weights, digest_tensor
from ckptcheck.watch.trainer_side import SyncOfTrainer
from ckptcheck.watch.watch_state import SyncWarning, WatchState

CAST_BYTES = 4 << 20
"""Largest tensor that is digested a second time after a cast to the engine's dtype. A small step may change none of a few elements
once they are cast; of a million it changes some."""

UNVERSIONED = "default"
"""What vLLM 0.32 and SGLang report until somebody gives their weights a version. TRL's client gives none."""
LARGE = 1 << 20
"""Bytes of a tensor from which on its digest is timed by the CPU's clock: a millisecond."""


class Syncing:
    """One watched sync. ``with`` calls `before` and `after`; code without a place for a block calls them itself."""

    def __init__(
        self, watch: WatchState, step: int | None, loss: float | None, version: str | None, *, looks_at_weights: bool
    ) -> None:
        self._watch, self._looks_at_weights, self._number = watch, looks_at_weights, watch.number
        self._sync = SyncRecord(step=step, loss=loss, version=version, trainer=watch.trainer, run=run_id())
        self._sync.gap, watch.pending_gap = watch.pending_gap, None
        self._sync.logged, watch.pending_step = watch.pending_step, None
        self._began = self._digest_seconds = 0.0
        self._is_incomplete = self._has_ended = False
        self._iterators_returned = self._iterators_started = 0
        self._names: set[str] = set()
        """Names of the tensors that the trainer sent, also of those that this sync does not digest."""
        self._cpu_seconds = 0.0
        self._is_over_budget = False
        self._is_in_background = watch.is_in_background
        self._sent_digests, self._engine_digests, self._payload_digests = (SyncDigests() for _ in range(3))
        self._payload_count = 0
        self._sent_set, self._engine_set = SetIdentity(), SetIdentity()
        self._identity_seconds = 0.0
        if looks_at_weights:
            watch.schedule.begin()
            self._sync.group = watch.schedule.label
        self._own_numbers: dict[str, float] = {}
        self._comparison = SyncComparison(watch)
        self._sync_check: SyncCheck | None = None

    @property
    def report(self) -> Report | None:
        """The findings; None before `after`, and if the watch checked nothing. Waits for a check in the background."""
        if self._sync_check is None:
            return None
        self._watch.thread.wait()
        return self._sync_check.report

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
                self._look_at(item)
            return weights
        if hasattr(weights, "__aiter__"):
            self._iterators_returned += 1
            return self._iterate_async(weights)
        if hasattr(weights, "__iter__"):
            self._iterators_returned += 1
            return self._iterate(weights)
        self.unseen(f"{type(weights).__name__} is no series of names and tensors")
        return weights

    def _iterate(self, weights: Iterable[Any]) -> Iterator[Any]:
        self._iterators_started += 1
        current: list[Any] = []
        for item in weights:
            self._look_at(item)
            current.append(item)
            del item
            # the generator keeps no reference to a tensor that it has yielded: the trainer frees each one before the next
            yield current.pop()

    async def _iterate_async(self, weights: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._iterators_started += 1
        current: list[Any] = []
        async for item in weights:
            self._look_at(item)
            current.append(item)
            del item
            yield current.pop()

    def chunks(self, chunks: Iterable[Iterable[tuple[str, Any]]]) -> Iterator[Any]:
        """Yield the buckets of weights unchanged and in the same order, and digest the weights in them."""
        for chunk in chunks:
            current = [self._look_at_bucket(chunk)]
            del chunk
            yield current.pop()

    def _look_at_bucket(self, chunk: Iterable[tuple[str, Any]]) -> Any:
        items = chunk if isinstance(chunk, list | tuple) else list(chunk)
        for item in items:
            self._look_at(item)
        return items

    def add_numbers(self, **values: float) -> None:
        """Add numbers of your own to those that `Watch(metrics=...)` sends, such as the parity of a probe: ``parity=0.002``."""
        self._own_numbers |= values

    def trained_by(self, trainer: SyncOfTrainer) -> None:
        """Hold what is sent against the trainer's own parameters: `TrainerSide.begin`."""
        self._comparison.trainer = trainer

    def partly(self, why: str) -> None:
        """Note that only a part of the weights passes here. why: the reason, for the record and for a finding (HIS011)."""
        if not self._has_ended:
            self._sync.partial = why

    def suspect(self, *reasons: str) -> None:
        """Note what lets the logprobs of equal weights differ, which names the cause where the job logs a gap (HIS024)."""
        if not self._has_ended:
            self._sync.suspects = list(reasons)

    def unseen(self, why: str) -> None:
        """Drop the digests of this sync, because not all of its weights pass here. why: the reason; the watch warns once."""
        if self._looks_at_weights and not self._has_ended:
            self._is_incomplete, self._watch.story.trouble = True, why
            if why not in self._watch.warned:
                self._watch.warned.add(why)
                warnings.warn(f"ckptcheck.watch does not see what is sent: {why}", SyncWarning, stacklevel=3)

    def after(self, error: BaseException | None = None) -> None:
        """Check the engine, append to the record, and report findings. error: the exception of a sync that failed.

        Raises SyncError if the watch has ``on="raise"``, there is an error finding, and the sync itself did not raise: on each
        rank, whichever of them checks.
        """
        watch, ranks = self._watch, self._watch.ranks
        if watch.enabled:
            found = ""
            try:
                self._check(error)
            except SyncError as raised:
                found = str(raised)
                raise
            finally:
                if ranks is not None:
                    watch.attempt("tell the other ranks", lambda: ranks.tell(found), once=True)
        elif ranks is not None and error is None and (found := ranks.hear(watch.say)):
            raise SyncError(None, found)

    def _check(self, error: BaseException | None) -> None:
        """Look at both sides, and have the sync judged. Raises as `after`."""
        watch, sync = self._watch, self._sync
        sync.seconds = time.monotonic() - self._began - self._digest_seconds - self._identity_seconds
        began = time.monotonic()
        if error is None and self._iterators_started < self._iterators_returned:
            self.unseen("the sync ended before the engine read the weights; watch the call that reads them")
        self._has_ended = True
        if error is not None:
            sync.ok, sync.message = False, f"{type(error).__name__}: {error}"
        # after Ctrl-C the user does not want to wait for an engine's answers
        is_ending = error is not None and not isinstance(error, Exception)
        if self._is_incomplete:
            # with only some of the digests, the rules would report the other weights as not sent
            self._sent_digests.clear()
            self._payload_digests.clear()
        has_expected = self._looks_at_weights and not is_ending and watch.expected is not None
        if has_expected and not watch.attempt("digest what the trainer expects", self._digest_expected):
            self._sent_digests.clear()
        if watch.engine is not None:
            sync.engine, sync.alike = watch.engine.name, watch.engine.alike
            is_asked = not is_ending and self._version() and self._looks_at_weights
            if is_asked and not watch.attempt("ask the engine for its weights", self._read_engine):
                self._engine_digests.clear()
        probe = watch.probe
        if probe is not None and error is None and (self._number - 1) % max(1, probe.every) == 0:
            watch.attempt("compare the logprobs of both sides", self._probe)
        if watch.names_sets and not is_ending:
            watch.attempt("name the weights by their content", self._name_sets, once=True)
        # the last use of the device: the check in the background needs none
        if not self._is_over_budget:
            cpu = time.thread_time()
            watch.attempt("fetch what it has digested", self._fetch_digests)
            watch.attempt("compare the two sides", self._compare, once=True)
            self._cpu_seconds += time.thread_time() - cpu
        sync.checked = self._digest_seconds + self._identity_seconds + time.monotonic() - began
        if self._looks_at_weights and error is None:
            looked = watch.coverage.note(self._names, {} if self._is_over_budget else self._sent_digests.sizes)
            sync.coverage = watch.coverage.share
            watch.schedule.note(float("inf") if self._is_over_budget else self._cpu_seconds, looked)
        self._start_check(error, is_ending)

    def _start_check(self, error: BaseException | None, is_ending: bool) -> None:
        """Have the sync checked, here or in the background."""
        watch = self._watch
        looks = self._looks_at_weights and not is_ending
        self._sync_check = SyncCheck(
            watch, self._sync, self._own_numbers, is_in_background=self._is_in_background, looks=looks
        )
        for sink in watch.sinks:
            watch.attempt("find the run of its numbers", sink.find_run)
        watch.nbytes = max(
            watch.nbytes, self._sent_digests.nbytes, self._engine_digests.nbytes, self._payload_digests.nbytes
        )
        if not self._is_in_background or is_ending:
            self._sync_check.run(error)
            return
        try:
            is_taken = watch.thread.submit(partial(self._sync_check.run, error), watch.schedule.budget)
            if not is_taken:
                watch.say(
                    "the job syncs faster than its weights can be checked, so some syncs are not checked;"
                    " every=n checks each n-th"
                )
                # a sync that is missing from the record would look like one that the job skipped (HIS014)
                self._sync_check.leave_out_weights()
                watch.thread.submit(partial(self._sync_check.run, error), 0.0, always=True)
        except RuntimeError:  # no thread can begin
            self._sync_check.run(error)

    def _look_at(self, item: Any) -> None:
        """Digest a tensor that the trainer sends, if it is its turn. The job waits meanwhile, so most only cost a name."""
        if not self._looks_at_weights or self._is_incomplete or self._has_ended:
            return
        if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str)):
            self._look_at_payload(item)
            return
        watch, (name, tensor) = self._watch, item
        if not self._names:
            began, cpu = time.monotonic(), time.thread_time()
            self._comparison.look_before()
            self._cpu_seconds += time.thread_time() - cpu
            self._digest_seconds += time.monotonic() - began
        self._names.add(name)
        if watch.names_sets:
            began = time.monotonic()
            watch.attempt(f"sum {name}", partial(self._add_to_set, name, tensor), once=True)
            self._identity_seconds += time.monotonic() - began
        if not watch.schedule.includes(name) or self._stops():
            return
        # to ask for the CPU's time takes longer than a small digest, which other processes hardly ever interrupt
        clock = time.thread_time if getattr(tensor, "nbytes", 0) > LARGE else time.monotonic
        began, cpu = time.monotonic(), clock()
        try:
            self._digest(name, tensor)
        except Exception as error:
            self._is_incomplete = True
            watch.warn_of(f"digest {name}", error)
        self._cpu_seconds += clock() - cpu
        self._digest_seconds += time.monotonic() - began

    def _add_to_set(self, name: str, tensor: Any) -> None:
        self._sent_set.add(name, tensor, self._watch.like)

    def _look_at_payload(self, item: Any) -> None:
        """Digest the tensors of an item that does not name the weights that they change, such as a flush of a delta."""
        began, before = time.monotonic(), len(self._payload_digests)
        if not self._stops():
            is_digested = self._watch.attempt("digest a payload", partial(self._digest_payload, item))
            self._is_incomplete = not is_digested
            if is_digested and len(self._payload_digests) == before:
                self.unseen(f"it comes as {type(item).__name__}, not as names and tensors")
        self._payload_count += 1
        self._cpu_seconds += time.monotonic() - began
        self._digest_seconds += time.monotonic() - began

    def _digest_payload(self, item: Any) -> None:
        for place, tensor in find_tensors(item):
            self._payload_digests.add(f"{self._payload_count}.{place}", tensor)

    def _stops(self, more: float = 0.0) -> bool:
        """Return whether the digests of this sync have used up the budget. more: seconds of reading that do not count yet."""
        if not self._is_over_budget and self._digest_seconds + more > self._watch.schedule.budget:
            self._is_over_budget = True
            self._watch.say(
                f"digests took more than {self._watch.schedule.budget:g} s (budget) of a sync: the rest of it is not checked, and"
                " the next ones check fewer tensors"
            )
        return self._is_over_budget

    def _digest(self, name: str, tensor: Any) -> None:
        if isinstance(tensor, str):
            self._sent_digests.add_digests({name: tensor})
            return
        if hasattr(type(tensor), "full_tensor"):
            raise CkptcheckError("it is sharded over ranks; gather it (full_tensor) before it passes through")
        self._sent_digests.add(name, tensor)
        cast = find_dtype(self._watch.engine, name)
        self._comparison.add(name, tensor, cast)
        if cast is None or not hasattr(tensor, "data_ptr") or cast == tensor.dtype or tensor.nbytes > CAST_BYTES:
            return
        # a dtype of one byte has a scale too
        if cast.is_floating_point and cast.itemsize > 1:
            self._sent_digests.casts[name] = digest_tensor(tensor.to(cast))

    def _digest_expected(self) -> None:
        assert self._watch.expected is not None
        for name, tensor in self._watch.expected():
            self._digest(name, tensor)

    def _read_engine(self) -> None:
        began, cpu = time.monotonic(), time.thread_time()
        watch = self._watch
        assert watch.engine is not None
        watch.names |= self._names

        def stops() -> bool:
            return self._stops(time.monotonic() - began)

        unseen = read_engine(watch.engine, watch.names, self._engine_digests, watch.schedule.includes, stops)
        self._sync.unseen = sorted(unseen)
        self._cpu_seconds += time.thread_time() - cpu

    def _name_sets(self) -> None:
        """Note the identities of what was sent and of what the engine holds. A part of the weights gets none."""
        if self._is_incomplete or self._sync.partial or self._payload_count or not self._looks_at_weights:
            return
        self._sync.identity = self._sent_set.compute(self._watch.like)
        if self._sync.identity is None or self._watch.engine is None:
            return
        for part, tensor in read_parts(self._watch.engine, self._names):
            if part.name in self._names:
                self._engine_set.add(part.name, tensor, self._watch.like)
        if self._engine_set.has_tensors_of(self._sent_set):
            self._sync.held_identity = self._engine_set.compute(self._watch.like)

    def _fetch_digests(self) -> None:
        sync, sent, payload = self._sync, self._sent_digests, self._payload_digests
        sync.sent, sync.held, sync.payload = sent.fetch(), self._engine_digests.fetch(), payload.fetch()
        sync.cast, sync.nbytes, sync.payload_bytes = sent.casts, sent.nbytes, payload.nbytes

    def _compare(self) -> None:
        if not self._looks_at_weights:
            return
        is_whole = self._sync.ok and not (self._is_incomplete or self._sync.partial or self._payload_count)
        self._comparison.finish(self._sync, self._names, is_whole=is_whole)

    def _probe(self) -> None:
        assert self._watch.probe is not None
        watch, step = self._watch, self._sync.step
        probe = self._sync.probe = self._watch.probe.measure(step, self._sync.version, is_early=watch.probes < 2)
        watch.probes += 1
        if probe.drawn is not None:
            watch.gaps.append(GapRecord(DRAWN, probe.drawn, step, probe.dtype))

    def _version(self, *, before: bool = False) -> bool:
        """Ask the engine for its version, and return whether it answered."""
        engine, sync = self._watch.engine, self._sync
        if engine is None:
            return False

        def ask() -> None:
            version = engine.version()
            if version == UNVERSIONED and sync.version is None:
                version = None
            if before:
                sync.before = version
            else:
                sync.version = version or sync.version

        return self._watch.attempt("ask the engine for its version", ask)
