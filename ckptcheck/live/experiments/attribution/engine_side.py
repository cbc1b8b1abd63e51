"""Scores rollouts with a running engine: by another path, with empty caches, one by one, or started with other options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import EngineChange
from ckptcheck.live.experiments.attribution.rescoring import Rescoring
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.engines.base import Engine, TensorDigests
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray

Start = Callable[[Path | None, str | None, bool, Engine | None], Engine]
"""Starts an engine.

Arguments: the checkpoint (None: the engine's own), the compute dtype (None: the job's), whether the output head computes in
float32, and the engine that the new one replaces.
"""
BATCH = 8
"""How many sequences the engine scores at once."""
ONLY_NOW = (EngineChange(), EngineChange(alone=True), EngineChange(path="prefill"), EngineChange(fresh=True))
"""The changes that only the engine that drew the tokens can answer; in this order, because the last one empties the caches."""


@dataclass(frozen=True)
class StartOptions:
    """The options of `EngineChange` that need a new start of the engine."""

    dtype: str | None = None
    head_fp32: bool = False
    cold: bool = False
    config: bool = False


AS_IN_THE_JOB = StartOptions()


class EngineSide:
    """An engine that starts at the first request, and restarts where a change needs other options.

    Args:
        folders: maps (cold, config), as in `EngineChange`, to the checkpoint that the engine starts from.
        folder: for temporary files.
        running: the engine that drew the tokens, if it still runs with the job's caches and weights. Before another engine
            replaces it, ckptcheck asks it for everything that only it can answer (`ONLY_NOW`).
    """

    def __init__(
        self,
        rollouts: Rollouts,
        start: Start,
        folders: Callable[[bool, bool], Path | None],
        folder: Path,
        *,
        running: Engine | None = None,
    ) -> None:
        def start_with(setup: StartOptions, replaced: Engine | None) -> Engine:
            source = folders(setup.cold, setup.config) if setup.cold or setup.config else None
            return start(source, setup.dtype, setup.head_fp32, replaced)

        self._rollouts, self._folder, self._job = rollouts, folder, running
        self._side = Side[StartOptions, Engine](start_with, job=AS_IN_THE_JOB, running=running)
        self._dtype = running.info.dtype if running is not None else None
        self._found: dict[EngineChange, NDArray[Any]] = {}
        self._manifests: dict[bool, TensorDigests] = {}
        self._processed: bool | None = None
        self._same_weights = False

    def scores(self, change: EngineChange) -> NDArray[Any]:
        """Return the logprobs under a change, float64 [T]. Raises Skip, and what the engine's process raises."""
        if change not in self._found:
            engine = self._ready(StartOptions(change.dtype, change.head_fp32, change.cold, change.config))
            self._found[change] = self._scored(engine, change)
        return self._found[change]

    def manifest(self, *, cold: bool) -> TensorDigests:
        """Return digests of the weights of the job's engine, or of an engine that starts from the trainer's weights (cold)."""
        if cold not in self._manifests:
            self._manifests[cold] = self._ready(StartOptions(cold=cold)).digest_tensors()
        return self._manifests[cold]

    def assume_equal_weights(self) -> None:
        """Record that the trainer's weights equal the engine's own, so that a cold start changes nothing."""
        if self._job is None:
            self._same_weights = True
            if self._side.setup is not None:
                self._side.setup = replace(self._side.setup, cold=False)

    @property
    def has_started(self) -> bool:
        """Whether the engine has ever started with the job's settings."""
        return self._dtype is not None

    def close(self) -> None:
        """Close the engine; the next request starts another."""
        self._side.discard()

    def _ready(self, setup: StartOptions) -> Engine:
        """Return an engine that runs with these options; start one where needed. Raises Skip where that failed before."""
        setup, side = self._plain(setup), self._side
        side.require(setup)
        if self._job is not None and (side.process is None or side.setup != setup):
            if setup == AS_IN_THE_JOB:
                raise Skip("the engine that drew the tokens was given up for another experiment")
            if side.process is self._job:
                self._ask_for_the_last_time(self._job)
        engine = side.ready(setup)
        if setup == AS_IN_THE_JOB:
            self._dtype = engine.info.dtype
        if setup.head_fp32 and (reason := engine.ignored_switches.get("head_fp32")) is not None:
            side.refused[setup] = reason
            raise Skip(reason)
        return engine

    def _plain(self, setup: StartOptions) -> StartOptions:
        """Remove options that change nothing, so that no engine starts for them."""
        dtype = None if setup.dtype == self._dtype else setup.dtype
        # an engine in float32 has a float32 head already
        head = setup.head_fp32 and (dtype or self._dtype) != "float32"
        return replace(setup, dtype=dtype, head_fp32=head, cold=setup.cold and not self._same_weights)

    def _ask_for_the_last_time(self, engine: Engine) -> None:
        """Get everything that only the engine that drew the tokens can answer, before another engine replaces it."""
        if False not in self._manifests:
            self._manifests[False] = engine.digest_tensors()
        for change in ONLY_NOW:
            if change not in self._found:
                self._found[change] = self._scored(engine, change)

    def _scored(self, engine: Engine, change: EngineChange) -> NDArray[Any]:
        """Return logprobs of the recorded kind, raw or processed, under a change."""
        if not self._drawn_from(engine):
            return self._raw(engine, change)
        if change.path != "prefill":
            raise Skip("the recorded logprobs are processed, and by decoding it tells raw ones only")
        return self._cut(engine, change.fresh)

    def _raw(self, engine: Engine, change: EngineChange) -> NDArray[Any]:
        """Return raw logprobs under a change, float64 [T]."""
        rescoring = Rescoring(self._rollouts)
        logprobs = rescoring.empty_scores()
        size = 1 if change.alone else BATCH
        for numbers in self._batches(size):
            sequences = [rescoring.tokens_of(number) for number in numbers]
            if change.fresh:
                engine.reset_prefix_cache()
            if change.path == "prefill":
                for number, score in zip(numbers, engine.score(sequences), strict=True):
                    rescoring.put_scores(logprobs, number, score.prompt_logprobs)
                continue
            # where the batch has longer prompts too, their last tokens are forced like a response
            first_decoded = max(1, int(self._rollouts.prompt_lengths[numbers[0]]))
            for number, values in zip(numbers, engine.score_by_decode(sequences, first_decoded), strict=True):
                begin = self._rollouts.sequence(number).start + first_decoded
                logprobs[begin : begin + len(values)] = values
        return logprobs

    def _batches(self, size: int) -> Iterator[list[int]]:
        """Yield batches of sequences that have a response, those with prompts of similar length together, the shortest first."""
        import numpy as np

        prompts = np.maximum(self._rollouts.prompt_lengths, 1)
        order = np.argsort(prompts, kind="stable")
        usable = order[(np.diff(self._rollouts.starts) > prompts)[order]].tolist()
        for begin in range(0, len(usable), size):
            yield usable[begin : begin + size]

    def _cut(self, engine: Engine, fresh: bool) -> NDArray[Any]:
        """Return logprobs of the job's sampling distribution, float64 [T]. fresh: with empty caches."""
        sampling = self._rollouts.metadata.sampling
        if fresh:
            engine.reset_prefix_cache()
        return Rescoring(self._rollouts).score_truncated(
            engine, self._folder, sampling.temperature or 1.0, sampling.top_p or 1.0, max(0, sampling.top_k or 0)
        )

    def _drawn_from(self, engine: Engine) -> bool:
        """Return whether the recorded logprobs are processed; where the file does not say, take the kind that fits better."""
        import numpy as np

        metadata = self._rollouts.metadata
        sampling = metadata.sampling
        if self._processed is None:
            is_plain = (
                (sampling.temperature or 1.0) == 1.0 and (sampling.top_p or 1.0) >= 1 and (sampling.top_k or 0) <= 0
            )
            self._processed = metadata.logprobs == "processed" and not is_plain
            if metadata.logprobs == "unknown" and not is_plain:
                recorded = np.asarray(self._rollouts.columns["engine_logprobs"], np.float64)
                raw, truncated = self._raw(engine, EngineChange(path="prefill")), self._cut(engine, False)
                comparable = np.isfinite(raw) & np.isfinite(truncated) & (recorded != 0)
                raw_gap, truncated_gap = (np.abs(values - recorded)[comparable].sum() for values in (raw, truncated))
                self._processed = bool(truncated_gap < raw_gap)
        return self._processed
