"""Runs a trial: cold load, scramble, sync, step, sync again with other buckets, and a cold load to hold each against.

The reference is the same engine, started cold from the weights that the trainer holds. So no knowledge of fused, sharded or
repacked layouts is needed to know *that* a tensor is wrong; only the diagnosis needs it, to say why.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from ckptcheck.engines.base import Engine, Manifest, Scores
from ckptcheck.engines.context import USUAL
from ckptcheck.errors import CkptcheckError
from ckptcheck.history.record import now
from ckptcheck.host.patience import within
from ckptcheck.host.trouble import HostDied, HostHung, VerbError
from ckptcheck.refit import floor, placement
from ckptcheck.refit.nap import REST, WEIGHTS, Nap, idle, sleeper
from ckptcheck.refit.passage import Busy
from ckptcheck.refit.questions import Questions
from ckptcheck.refit.reasons import explained
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.sync import send
from ckptcheck.refit.text import Text
from ckptcheck.refit.trace import RefitTrace, Sync
from ckptcheck.trainers.base import Trainer

Say = Callable[[str], None]
LINES = 12
"""Of what a process said last."""


class Start(Protocol):
    """Starts an engine cold from a checkpoint."""

    def __call__(self, checkpoint: Path) -> Engine:
        """Start it. Raises what the host raises."""
        ...


class Trial:
    """One trial. start_trainer: returns the trainer with its weights loaded; the caller ends it. start: starts the engine, each
    time in a process of its own.

    vocabulary: rows of the embedding. block: tokens that the engine's prefix cache keeps together, 0 where it has none.
    length: tokens that the model has room for. nbytes: of the weights. text: the tokenizer, for a prompt that means something.
    folder: for checkpoints that are written on the way. say: told what is being done.
    """

    def __init__(
        self,
        target: str,
        start_trainer: Callable[[], Trainer],
        start: Start,
        settings: Settings,
        *,
        vocabulary: int,
        block: int = 0,
        length: int = USUAL,
        nbytes: int = 0,
        text: Text | None = None,
        folder: Path,
        say: Say = lambda _: None,
    ) -> None:
        self._start_trainer, self._start, self._settings = start_trainer, start, settings
        self._folder, self._say, self._nbytes = folder, say, nbytes
        self._trainer: Trainer
        self._phase = ""
        self._questions = Questions.of(vocabulary, block, text or Text(), settings.decode, length)
        small = f"the model has room for {length} tokens, and the prefix cache keeps {block} together"
        self._trace = RefitTrace(target, unkept=small if block and not self._questions.probe else "")

    def run(self) -> RefitTrace:
        """Run it. What dies, hangs, is refused or interrupted on the way ends it, and is in the trace with its last words.

        Raises CkptcheckError for a trainer or an engine that cannot be had at all.
        """
        engine: Engine | None = None
        try:
            with self._within("start", "start of the trainer"):
                self._trainer = self._start_trainer()
                self._trace = replace(self._trace, trainer=self._trainer.info, weights=tuple(self._trainer.weights()))
                self._compare_ranks(0)
            with self._within("start", "cold load"):
                engine = self._start(self._saved(0))
                placement.check(self._trainer, engine, self._settings.transport)
                for name, why in engine.ignored.items():
                    self._say(f"{name}: {why}")
                cold, route = engine.manifest(), self._settings.transport
                self._trace = replace(
                    self._trace,
                    engine=engine.info,
                    streamed=route if route in engine.streams else "",
                    ignored=engine.ignored,
                    cold=cold,
                    memory=(engine.memory(),),
                )
            self._rounds(engine)
            self._last()
        except (CkptcheckError, OSError, KeyboardInterrupt) as error:
            refused = isinstance(error, CkptcheckError) and not isinstance(error, (HostDied, VerbError))
            if refused and self._trace.engine is None:
                raise  # nothing was seen that could be kept
            self._trace = replace(self._trace, broken={self._phase: self._told(error)})
        except (
            Exception
        ) as error:  # a fault of ours, or a far side that says what nobody expects: what was seen is kept
            self._say(traceback.format_exc().rstrip())
            self._trace = replace(self._trace, broken={self._phase: f"{type(error).__name__}: {error}"})
        finally:
            if engine is not None:
                engine.close()
        return self._trace

    def _rounds(self, engine: Engine) -> None:
        cold = self._trace.cold
        if self._settings.logprobs:
            with self._within("score", "score the cold load"):
                self._scored(engine, 0, self._questions.scores(engine))
            with self._within("score", "measure the noise of both sides"):
                self._trace = replace(
                    self._trace,
                    floor=floor.measured(engine, self._trainer, self._questions.sequences, self._questions.decode),
                )
        with self._within("sync", "scramble"):
            scrambled = engine.scramble()
            self._trace = replace(self._trace, scrambled=scrambled, marked=engine.manifest())
        self._sync(engine, 0, self._settings.bucket_bytes, cold, "first sync")
        with self._within("score", "score after the first sync"):
            self._scored(engine, 1, self._trace.scorings[0].engine if self._trace.scorings else ())
        for step in range(1, self._settings.steps + 1):
            dropped = self._settings.sleep_level == 2
            if dropped:
                self._warm(engine, step)
            with self._asleep(engine) as wake:
                with self._within("step", f"step {step}"):
                    self._step(step)
                with self._within("start", f"reference for step {step}"):
                    reference, scores = self._reference(step)
                wake()
                if not dropped:
                    self._warm(engine, step)
                self._sync(engine, step, self._settings.other_bytes, reference, f"sync after step {step}")
            with self._within("score", f"score after step {step}"):
                self._scored(engine, len(self._trace.syncs), scores)
            self._sync(engine, step, self._settings.bucket_bytes, reference, "the same sync with other buckets")

    def _last(self) -> None:
        """Spoil the trainer's weights to see what rounding does to logprobs: when nothing else is asked of them any more."""
        assert self._trace.engine is not None
        if not self._settings.logprobs:
            return
        with self._within("score", "measure what rounding comes to"):
            dtypes = [self._trainer.info.dtype, self._trace.engine.dtype]
            moved = floor.rounded(self._trainer, dtypes, self._questions.sequences)
            known = self._trace.floor
            self._trace = replace(self._trace, floor=replace(known, trainer=replace(known.trainer, rounding=moved)))

    def _warm(self, engine: Engine, step: int) -> None:
        if self._settings.logprobs:
            with self._within("score", f"fill the cache before the sync after step {step}"):
                self._questions.warm(engine)

    @contextmanager
    def _asleep(self, engine: Engine) -> Iterator[Callable[[], None]]:
        """Let the engine sleep while others need the device, where it can, and give what wakes it for a sync.

        What it holds then is compared once. Where weights were dropped, it has the memory of its cache again after the sync.
        """
        able, level = sleeper(engine), self._settings.sleep_level
        if isinstance(able, str):
            self._trace = replace(self._trace, awake=able)
            yield lambda: None
            return
        with self._within("sync", "sleep"):
            before, held = engine.manifest() if self._trace.nap is None else {}, engine.memory()
            able.sleep(level)
            freed = held - engine.memory()

        def wake() -> None:
            with self._within("sync", "wake"):
                able.wake(WEIGHTS if level == 2 else None)
                if before:
                    nap = Nap(before, engine.manifest(), freed, level, idle(engine))
                    self._trace = replace(self._trace, nap=nap)

        yield wake
        if level == 2:
            with self._within("sync", "wake the rest"):
                able.wake(REST)

    @contextmanager
    def _within(self, kind: str, phase: str) -> Iterator[None]:
        """Do a phase in the time that its kind has."""
        self._phase = phase
        self._say(phase)
        self._seconds = self._settings.timeouts.seconds(kind, self._nbytes)
        self._kind = kind
        with within(self._seconds):
            yield

    def _told(self, error: BaseException) -> str:
        """Say what ended the trial, in one line; what a process said last goes to the user as well."""
        if not isinstance(error, CkptcheckError):
            return str(error) or "interrupted"
        for line in error.last_words[-LINES:] if isinstance(error, HostDied) else ():
            self._say(f"  | {line}")
        text = error.message + (f"; {error.hint}" if error.hint else "")
        if isinstance(error, HostHung):
            text += f"; the phase had {self._seconds:,.0f} s (--timeout {self._kind}=SECONDS)"
        return text

    def _saved(self, step: int) -> Path:
        folder = self._folder / f"step{step}"
        folder.mkdir()
        self._trainer.save(folder)
        return folder

    def _step(self, step: int) -> None:
        if self._settings.perturb is not None:
            self._trainer.perturb(self._settings.perturb, seed=step)
        else:
            taken = self._trainer.step(self._questions.sequences, seed=step)
            self._trace = replace(self._trace, steps=(*self._trace.steps, taken))
        self._compare_ranks(step)

    def _compare_ranks(self, step: int) -> None:
        if self._trainer.info.layout:
            self._trace = replace(self._trace, unlike={**self._trace.unlike, step: self._trainer.replicas()})

    def _reference(self, step: int) -> tuple[Manifest, tuple[Scores, ...]]:
        """Start the engine cold from the stepped weights, and end it again."""
        engine = self._start(self._saved(step))
        try:
            return engine.manifest(), self._questions.scores(engine) if self._settings.logprobs else ()
        finally:
            engine.close()

    def _sync(self, engine: Engine, step: int, bucket_bytes: int, reference: Manifest, phase: str) -> None:
        weights, began = self._settings.weights, time.monotonic()
        with self._within("sync", phase):
            sent = dict(self._trainer.digests())
            digested = time.monotonic()
            number, route = len(self._trace.syncs) + 1, self._settings.transport
            busy = Busy(self._settings.pause, self._questions.prompt, str(number)) if self._settings.pause else None
            parcels, answer = send(self._trainer, engine, bucket_bytes, route, f"sync-{number}", busy)
            synced = time.monotonic()
            manifest = engine.manifest() if weights else {}
            sync = Sync(
                number=number,
                step=step,
                time=now(),
                bucket_bytes=bucket_bytes,
                buckets=len(parcels),
                nbytes=sum(parcel.nbytes for parcel in parcels),
                answer=answer,
                sent=sent,
                manifest=manifest,
                reference=reference if weights else {},
                seconds=synced - digested,
                sent_seconds=digested - began,
                passage=busy.passage if busy else None,
            )
            memory = (*self._trace.memory, engine.memory())
            different = bool(sync.differing)
            sync = replace(sync, check_seconds=time.monotonic() - synced)
            if step == 0 and weights:
                sync = replace(sync, leftovers=engine.leftovers())
        before = replace(self._trace, memory=memory)
        self._trace = replace(before, syncs=(*before.syncs, sync))
        if different:
            with self._within("start", f"look for causes after sync {sync.number}"):
                again = partial(self._start, self._folder / f"step{step}")
                sync = explained(engine, again, sync, self._folder)
            self._trace = replace(before, syncs=(*before.syncs, sync))

    def _scored(self, engine: Engine, after: int, cold: Sequence[Scores]) -> None:
        if self._settings.logprobs:
            scoring = self._questions.asked(engine, self._trainer, after, cold)
            self._trace = replace(self._trace, scorings=(*self._trace.scorings, scoring))
