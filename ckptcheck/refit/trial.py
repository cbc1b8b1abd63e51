"""Runs a trial: cold load, scramble, sync, step, sync again with other buckets, and a cold load to hold each against.

The reference is the same engine, started cold from the weights that the trainer holds. So no knowledge of fused, sharded or
repacked layouts is needed to know *that* a tensor is wrong; only the diagnosis needs it, to say why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from ckptcheck.engines.base import Answer, Engine, Manifest, Parcel, Scores
from ckptcheck.engines.group import addressed, rendezvous
from ckptcheck.host.trouble import HostDied, HostHung, VerbError
from ckptcheck.refit import sequences
from ckptcheck.refit.reasons import reasons
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.trace import RefitTrace, Scoring, Sync
from ckptcheck.trainers.base import Trainer

Say = Callable[[str], None]


class Start(Protocol):
    """Starts an engine cold from a checkpoint."""

    def __call__(self, checkpoint: Path) -> Engine:
        """Start it. Raises what the host raises."""
        ...


class Trial:
    """One trial. trainer: holds the weights already. start: starts the engine, each time in a process of its own.

    vocabulary: rows of the embedding. block: tokens that the engine's prefix cache keeps together, 0 where it has none.
    folder: for checkpoints that are written on the way. say: told what is being done.
    """

    def __init__(
        self,
        target: str,
        trainer: Trainer,
        start: Start,
        settings: Settings,
        *,
        vocabulary: int,
        block: int = 0,
        folder: Path,
        say: Say = lambda _: None,
    ) -> None:
        self._trainer, self._start, self._settings = trainer, start, settings
        self._folder, self._say = folder, say
        self._sequences = sequences.sequences(vocabulary)
        self._probe = sequences.probe(vocabulary, block) if block else ()
        self._trace = RefitTrace(target, trainer=trainer.info)
        self._sent: dict[str, str] = {}

    def run(self) -> RefitTrace:
        """Run it. What dies or hangs on the way ends it, and is in the trace with its last words."""
        engine: Engine | None = None
        phase = "start"
        try:
            with self._phase("cold load") as phase:
                checkpoint = self._saved(0)
                engine = self._start(checkpoint)
                cold = engine.manifest()
                self._trace = replace(self._trace, engine=engine.info, cold=cold, memory=(engine.memory(),))
            if self._settings.logprobs:
                with self._phase("score the cold load") as phase:
                    self._scored(engine, 0, self._scores(engine))
            with self._phase("scramble") as phase:
                scrambled = engine.scramble()
                self._trace = replace(self._trace, scrambled=scrambled, marked=engine.manifest())
            with self._phase("first sync") as phase:
                self._sync(engine, 0, self._settings.bucket_bytes, cold)
                cold_scores = self._trace.scorings[0].engine if self._trace.scorings else ()
                self._scored(engine, 1, cold_scores)
            for step in range(1, self._settings.steps + 1):
                with self._phase(f"step {step}") as phase:
                    self._step(step)
                with self._phase(f"reference for step {step}") as phase:
                    reference, scores = self._reference(step)
                with self._phase(f"sync after step {step}") as phase:
                    self._warm(engine)
                    self._sync(engine, step, self._settings.other_bytes, reference)
                    self._scored(engine, len(self._trace.syncs), scores)
                with self._phase("the same sync with other buckets") as phase:
                    self._sync(engine, step, self._settings.bucket_bytes, reference)
            self._trace = replace(self._trace, memory=(*self._trace.memory, engine.memory()))
        except (HostDied, HostHung, VerbError) as error:
            self._trace = replace(self._trace, broken={phase: str(error)})
        finally:
            if engine is not None:
                engine.close()
        return self._trace

    @contextmanager
    def _phase(self, name: str) -> Iterator[str]:
        self._say(name)
        yield name

    def _saved(self, step: int) -> Path:
        folder = self._folder / f"step{step}"
        folder.mkdir()
        self._trainer.save(folder)
        return folder

    def _step(self, step: int) -> None:
        if self._settings.perturb is not None:
            self._trainer.perturb(self._settings.perturb, seed=step)
        else:
            taken = self._trainer.step(self._sequences, seed=step)
            self._trace = replace(self._trace, steps=(*self._trace.steps, taken))

    def _reference(self, step: int) -> tuple[Manifest, tuple[Scores, ...]]:
        """Start the engine cold from the stepped weights, and end it again."""
        engine = self._start(self._saved(step))
        try:
            return engine.manifest(), self._scores(engine) if self._settings.logprobs else ()
        finally:
            engine.close()

    def _scores(self, engine: Engine) -> tuple[Scores, ...]:
        return tuple(engine.score(self._sequences, decode=self._settings.decode))

    def _sync(self, engine: Engine, step: int, bucket_bytes: int, reference: Manifest) -> None:
        sent = dict(self._trainer.digests())
        parcels, answer = self._update(engine, bucket_bytes)
        began = time.monotonic()
        manifest = engine.manifest() if self._settings.weights else {}
        took = time.monotonic() - began
        sync = Sync(
            number=len(self._trace.syncs) + 1,
            step=step,
            bucket_bytes=bucket_bytes,
            buckets=len(parcels),
            nbytes=sum(parcel.nbytes for parcel in parcels),
            answer=answer,
            sent=sent,
            manifest=manifest,
            reference=reference if self._settings.weights else {},
            leftovers=engine.leftovers() if step == 0 and self._settings.weights else {},
            check_seconds=took,
        )
        again = partial(self._start, self._folder / f"step{step}")
        sync = replace(sync, verdicts=reasons(engine, again, sync, self._folder))
        self._trace = replace(self._trace, syncs=(*self._trace.syncs, sync))

    def _update(self, engine: Engine, bucket_bytes: int) -> tuple[list[Parcel], Answer]:
        """Send all weights. Over a process group both sides wait for each other, so the trainer sends from a thread."""
        timeout, transport = self._settings.timeout, self._settings.transport
        if transport != "gloo" or engine.info.name == "fake":
            parcels = self._trainer.export(bucket_bytes)
            return parcels, engine.refit(parcels, transport, timeout=timeout)
        key = f"sync-{len(self._trace.syncs) + 1}"
        group = rendezvous(engine.info.ranks, key, timeout=timeout)
        parcels = addressed(self._trainer.plan(bucket_bytes), group)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(self._trainer.send, group, bucket_bytes)
            answer = engine.refit(parcels, transport, timeout=timeout)
            sending.result()
        return parcels, answer

    def _warm(self, engine: Engine) -> None:
        """Fill the prefix cache with the old weights' keys and values."""
        if self._probe and self._settings.logprobs:
            engine.score([self._probe], decode=2)

    def _scored(self, engine: Engine, after: int, cold: Sequence[Scores]) -> None:
        """Score on both sides; the cache is asked first, before anything else fills it."""
        if not self._settings.logprobs:
            return
        warm: tuple[tuple[Scores, Scores], ...] = ()
        if self._probe and after > 1:
            kept = engine.score([self._probe], decode=2)[0]
            engine.reset_prefix_cache()
            warm = ((kept, engine.score([self._probe], decode=2)[0]),)
        if after:
            engine.reset_prefix_cache()  # what is left of the old weights is the probe's matter
        trainer, again = (tuple(self._trainer.score(self._sequences)) for _ in range(2))
        scoring = Scoring(
            after=after,
            sequences=self._sequences,
            engine=self._scores(engine) if after else tuple(cold),
            cold=tuple(cold),
            trainer=trainer,
            again=again,
            warm=warm,
            greedy=tuple(self._trainer.greedy(tokens, self._settings.decode) for tokens in self._sequences),
        )
        self._trace = replace(self._trace, scorings=(*self._trace.scorings, scoring))
