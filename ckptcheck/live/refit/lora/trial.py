"""Runs a trial of a LoRA adapter: load, eviction, and another adapter under the same name, each held to a cold load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ckptcheck.live.refit.lora.trace import CachedAdapterProbe, LoraTrace, Scores, ServedAdapter
from ckptcheck.live.refit.scoring_inputs import cache_probe_sequence, scoring_sequences
from ckptcheck.live.refit.trial_state import FollowPhase, Log, Timeouts, TrialPhases
from ckptcheck.live.runtime.engines.base import Engine

DECODE = 2
"""Tokens that a request decodes, so that it reads the prefix cache."""
NAME = "policy"
"""The name under which requests ask for the adapter."""


class LoraTrial:
    """One trial of an adapter.

    start: starts the engine with a checkpoint, for adapters or not, in place of a running one. checkpoint: the base model.
    adapter: its folder. vocabulary: rows of the embedding. block: tokens that the prefix cache keeps together, 0 where the model
    has no room for two. folder: for what the trial writes. timeouts: of each kind of phase, None for the usual ones; to load
    and score an adapter is a sync. nbytes: of the base model's weights. say: gets a line for each phase.
    """

    def __init__(
        self,
        trace: LoraTrace,
        start: Callable[[Path, bool, Engine | None], Engine],
        checkpoint: Path,
        adapter: Path,
        *,
        vocabulary: int,
        block: int,
        folder: Path,
        timeouts: Timeouts | None = None,
        nbytes: int = 0,
        say: Log = lambda _: None,
        follow: FollowPhase | None = None,
    ) -> None:
        self.trace, self._start, self._checkpoint, self._adapter = trace, start, checkpoint, adapter
        self._folder, self._phases = folder, TrialPhases(timeouts or Timeouts(), nbytes, say, follow)
        self._sequences = scoring_sequences(vocabulary)
        self._probe = cache_probe_sequence(vocabulary, block) if block else ()

    def run(self) -> LoraTrace:
        """Run the trial and return its evidence. Raises CkptcheckError for an engine that cannot be started at all."""
        engine: Engine | None = None
        try:
            with self._phases.keep_evidence(
                self.trace.failed_phases, has_evidence=lambda: self.trace.engine is not None
            ):
                engine = self._run_tested_engine()
                engine = self._run_references(engine)
        finally:
            if engine is not None:
                engine.close()
        return self.trace

    def _run_tested_engine(self) -> Engine:
        """Load the adapter, have others take its slot, and replace it under its name."""
        trace = self.trace
        with self._phases.run("start", "cold load of the base model"):
            engine = self._start(self._checkpoint, True, None)
        try:
            with self._phases.run("sync", "load the adapter"):
                trace.engine = engine.info
                trace.base = self._score(engine, "")
                engine.load_adapter(NAME, self._adapter)
                trace.loaded = self._observe(engine, NAME)
                trace.repeat = self._score(engine, NAME)
            with self._phases.run("sync", "load more adapters than there are slots"):
                # with two slots, this many bring the adapter back to the other one
                for number in range(2 * trace.slots):
                    other = self._folder / f"other{number}"
                    engine.write_variant(self._adapter, other, seed=10 + number)
                    engine.load_adapter(other.name, other)
                    self._score(engine, other.name)
                trace.evicted = self._observe(engine, NAME)
                trace.base_after = self._score(engine, "")
            with self._phases.run("sync", "load another adapter under the same name"):
                if self._probe:
                    engine.score_with_adapter([self._probe], NAME, decode=DECODE)
                engine.write_variant(self._adapter, self._folder / "next", seed=1)
                engine.load_adapter(NAME, self._folder / "next", trace.update)
                if self._probe:
                    cached = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
                    engine.reset_prefix_cache()
                    after_reset = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
                    trace.cache_probe = CachedAdapterProbe(cached, after_reset)
                trace.updated = self._observe(engine, NAME)
            with self._phases.run("sync", "merge the adapter"):
                for name, nudge in (("merged", False), ("nudged", True)):
                    engine.write_merged(self._checkpoint, self._adapter, self._folder / name, nudge=nudge)
        except BaseException:
            engine.close()
            raise
        return engine

    def _run_references(self, engine: Engine) -> Engine:
        """Start the engine cold with the other adapter, and from the merged checkpoint."""
        trace = self.trace
        with self._phases.run("start", "cold load of the other adapter"):
            engine = self._start(self._checkpoint, True, engine)
            engine.load_adapter(NAME, self._folder / "next")
            if self._probe:
                trace.cold_probe = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
            trace.updated_cold = self._observe(engine, NAME)
        with self._phases.run("start", "cold load of the merged checkpoint"):
            engine = self._start(self._folder / "merged", False, engine)
            merged = self._score(engine, "")
            engine = self._start(self._folder / "nudged", False, engine)
            trace.merged, trace.merged_nudged = merged, self._score(engine, "")
        return engine

    def _observe(self, engine: Engine, name: str) -> ServedAdapter:
        scores = self._score(engine, name)
        return ServedAdapter(scores, engine.digest_adapter(name))

    def _score(self, engine: Engine, name: str) -> Scores:
        engine.reset_prefix_cache()
        return tuple(engine.score_with_adapter(self._sequences, name))
