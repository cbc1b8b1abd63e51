"""Runs a trial of a LoRA adapter: load, eviction, and another adapter under the same name, each held to a cold load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.lora.trace import CachedAdapterProbe, LoraTrace, Scores, ServedAdapter
from ckptcheck.live.refit.scoring_inputs import cache_probe_sequence, scoring_sequences
from ckptcheck.live.refit.trial_state import FollowPhase, Log, Timeouts, TrialPhases
from ckptcheck.live.runtime.engines.base import EngineInfo, SequenceScores, TensorDigests
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied

DECODE = 2
"""Tokens that a request decodes, so that it reads the prefix cache."""
NAME = "policy"
"""The name under which requests ask for the adapter."""


class LoraEngine(Protocol):
    """An engine that serves adapters; see `RemoteEngine`."""

    info: EngineInfo

    def load_adapter(self, name: str, folder: Path, update: str = "reload") -> None:
        """Load an adapter, or another one under the same name."""
        ...

    def score_with_adapter(
        self, sequences: Sequence[Sequence[int]], adapter: str, *, decode: int = 0
    ) -> list[SequenceScores]:
        """Score by requests with a loaded adapter, "" for none."""
        ...

    def digest_adapter(self, name: str) -> TensorDigests:
        """Digest what every rank holds of an adapter."""
        ...

    def write_merged(self, checkpoint: Path, adapter: Path, folder: Path, *, nudge: bool = False) -> None:
        """Write a checkpoint with an adapter merged into its weights."""
        ...

    def write_variant(self, adapter: Path, folder: Path, seed: int) -> None:
        """Write an adapter of the same shape, with other values."""
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...

    def close(self) -> None:
        """End the engine."""
        ...


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
        start: Callable[[Path, bool, LoraEngine | None], LoraEngine],
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
        engine: LoraEngine | None = None
        try:
            engine = self._run_tested_engine()
            engine = self._run_references(engine)
        except (CkptcheckError, OSError, KeyboardInterrupt) as error:
            if (
                isinstance(error, CkptcheckError)
                and self.trace.engine is None
                and not isinstance(error, RemoteError | WorkerDied)
            ):
                raise
            self.trace.failed_phases[self._phases.current] = self._phases.format_error(error)
        finally:
            if engine is not None:
                engine.close()
        return self.trace

    def _run_tested_engine(self) -> LoraEngine:
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

    def _run_references(self, engine: LoraEngine) -> LoraEngine:
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

    def _observe(self, engine: LoraEngine, name: str) -> ServedAdapter:
        scores = self._score(engine, name)
        return ServedAdapter(scores, engine.digest_adapter(name))

    def _score(self, engine: LoraEngine, name: str) -> Scores:
        engine.reset_prefix_cache()
        return tuple(engine.score_with_adapter(self._sequences, name))
