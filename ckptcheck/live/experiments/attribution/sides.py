"""The two sides of a gap, as they score recorded rollouts again under a change: a running engine, a running trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import EngineChange, TrainerChange
from ckptcheck.live.experiments.scoring import TOKENS, batch_by_length
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.engines.base import Engine, TensorDigests
from ckptcheck.live.runtime.trainers.base import Trainer, Weight
from ckptcheck.rollouts.full_vocab import FullVocabSource
from ckptcheck.rollouts.metrics.sampling_distribution import processed
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FULL = 1 << 28
"""Largest size in bytes of the full distributions that one experiment requests; it leaves out sequences beyond that."""
VOCABULARY = 1 << 18
"""The assumed vocabulary size where the rollouts do not record it."""
StartEngine = Callable[[Path | None, str | None, bool, Engine | None], Engine]
"""Starts an engine.

Arguments: the checkpoint (None: the engine's own), the compute dtype (None: the job's), whether the output head computes in
float32, and the engine that the new one replaces.
"""
BATCH = 8
"""How many sequences the engine scores at once."""
StartTrainer = Callable[[str | None, bool, Trainer | None], Trainer]
"""Starts a trainer.

Arguments: the compute dtype (None: the job's), whether the output head computes in float32, and the trainer that the new one
replaces, whose process it may take over.
"""
TrainerSetup = tuple[str | None, bool]
"""The compute dtype and whether the output head computes in float32, as `StartTrainer` takes them."""
TRAINER_OF_THE_JOB: TrainerSetup = (None, False)


@dataclass(frozen=True)
class Rescoring:
    """Maps between recorded sequences and the sequences that a side scores in place of them."""

    rollouts: Rollouts
    drop: int = 0
    """How many tokens are removed from the beginning of each sequence."""
    prepend: tuple[int, ...] = ()
    """Token ids that are added before each sequence."""

    def tokens_of(self, number: int) -> list[int]:
        """Return the tokens that a side scores in place of the sequence with this number."""
        tokens: list[int] = self.rollouts.tokens[self.rollouts.sequence(number)].tolist()
        return [*self.prepend, *tokens[self.drop :]]

    def empty_scores(self) -> NDArray[Any]:
        """Return logprobs, float64 [T], all NaN."""
        import numpy as np

        return np.full(len(self.rollouts.tokens), np.nan)

    def put_scores(self, made: NDArray[Any], number: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Write the scores of one sequence to the positions of its tokens.

        made: logprobs, float64 [T], of `empty_scores`. number: of the sequence. values: logprobs of all scored tokens but the
        first.
        """
        span = self.rollouts.sequence(number)
        # the index in the sequence of the token that the first value belongs to
        first_index = 1 + self.drop - len(self.prepend)
        skipped = max(0, -first_index)
        scores = values[skipped : skipped + span.stop - span.start - max(0, first_index)]
        begin = span.start + max(0, first_index)
        made[begin : begin + len(scores)] = scores

    def score_truncated(
        self, side: FullVocabSource, folder: Path, heat: float, top_p: float, top_k: int
    ) -> NDArray[Any]:
        """Request full distributions, and return logprobs of the sampling distribution (see metrics/sampling_distribution.py).

        Scores only as many sequences, from the first on, as fit into `FULL` bytes. Raises Skip if none fits.
        heat: the sampling temperature.
        """
        import numpy as np
        from safetensors.numpy import load_file

        rows = FULL // (4 * (self.rollouts.metadata.vocabulary or VOCABULARY))
        numbers, row_count = [], 0
        for number in range(self.rollouts.sequence_count):
            size = len(self.tokens_of(number))
            if size > 1 and row_count + size <= rows:
                numbers.append(number)
                row_count += size
        if not numbers:
            raise Skip("whole distributions of sequences this long do not fit in memory")
        sequences = [self.tokens_of(number) for number in numbers]
        tables = load_file(side.score_full_vocab(sequences, folder))
        logprobs = self.empty_scores()
        for index, (number, tokens) in enumerate(zip(numbers, sequences, strict=True)):
            table = processed(np.asarray(tables[str(index)], np.float64), heat, top_p, top_k)
            self.put_scores(logprobs, number, table[np.arange(len(table)), tokens[1:]])
        return logprobs


@dataclass(frozen=True)
class StartOptions:
    """The options of `EngineChange` that need a new start of the engine."""

    dtype: str | None = None
    head_fp32: bool = False
    cold: bool = False
    config: bool = False


ENGINE_OF_THE_JOB = StartOptions()


class EngineSide:
    """An engine that starts at the first request, and restarts where a change needs other options.

    Args:
        folders: maps (cold, config), as in `EngineChange`, to the checkpoint that the engine starts from.
        folder: for temporary files.
    """

    def __init__(
        self, rollouts: Rollouts, start: StartEngine, folders: Callable[[bool, bool], Path | None], folder: Path
    ) -> None:
        def start_with(setup: StartOptions, replaced: Engine | None) -> Engine:
            source = folders(setup.cold, setup.config) if setup.cold or setup.config else None
            return start(source, setup.dtype, setup.head_fp32, replaced)

        self._rollouts, self._folder = rollouts, folder
        self._side = Side[StartOptions, Engine](start_with, job=ENGINE_OF_THE_JOB)
        self._dtype: str | None = None
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
        engine = side.ready(setup)
        if setup == ENGINE_OF_THE_JOB:
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

    def _scored(self, engine: Engine, change: EngineChange) -> NDArray[Any]:
        """Return logprobs of the recorded kind, raw or processed, under a change."""
        if not self._drawn_from(engine):
            return self._raw(engine, change)
        if change.path != "prefill":
            raise Skip("the recorded logprobs are processed, and while it decodes the engine gives raw ones only")
        if change.alone:
            raise Skip("the recorded logprobs are processed, and those are scored in batches only")
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


class TrainerSide:
    """A trainer that starts at the first request, and restarts where a change needs another dtype.

    Args:
        folder: for temporary files.
        heat: the temperature of the recorded logprobs.
        tokens: how many tokens a batch may have, padding included.
    """

    def __init__(
        self, rollouts: Rollouts, start: StartTrainer, folder: Path, *, heat: float, tokens: int = TOKENS
    ) -> None:
        self._rollouts, self._folder = rollouts, folder
        self._heat, self._tokens = heat, tokens
        self._side = Side[TrainerSetup, Trainer](
            lambda setup, replaced: start(*setup, replaced), job=TRAINER_OF_THE_JOB
        )
        self._dtype: str | None = None

    def scores(self, change: TrainerChange) -> NDArray[Any]:
        """Return the logprobs under a change, float64 [T]. Raises Skip, and what the trainer's process raises."""
        trainer = self._ready(change.dtype, change.head_fp32)
        rescoring = Rescoring(self._rollouts, change.drop, change.prepend)
        temperature = change.temperature or self._heat
        if change.top_p < 1 or change.top_k > 0:
            return rescoring.score_truncated(trainer, self._folder, temperature, change.top_p, change.top_k)
        return self._whole(trainer, rescoring, temperature)

    def save(self, folder: Path) -> None:
        """Write the trainer's weights as a Hugging Face checkpoint."""
        self._ready(*TRAINER_OF_THE_JOB).save(folder)

    def weights(self) -> Sequence[Weight]:
        """Return the weights that the trainer exports."""
        return self._ready(*TRAINER_OF_THE_JOB).weights()

    def close(self) -> None:
        """Close the trainer; the next request starts another."""
        self._side.discard()

    @property
    def has_started(self) -> bool:
        """Whether the trainer has ever started with the job's settings."""
        return self._dtype is not None

    def _ready(self, dtype: str | None, head_fp32: bool) -> Trainer:
        """Return a trainer that runs with these options; start one where needed. Raises Skip where that failed before."""
        dtype = None if dtype == self._dtype else dtype
        # a trainer in float32 has a float32 head already
        setup = dtype, head_fp32 and (dtype or self._dtype) != "float32"
        trainer = self._side.ready(setup)
        if setup == TRAINER_OF_THE_JOB:
            self._dtype = trainer.info.dtype
        return trainer

    def _whole(self, trainer: Trainer, rescoring: Rescoring, temperature: float) -> NDArray[Any]:
        """Score every sequence with its full context."""
        logprobs = rescoring.empty_scores()
        for batch in batch_by_length(self._rollouts, self._tokens):
            numbers = [number for number in batch if len(rescoring.tokens_of(number)) > 1]
            if not numbers:
                continue
            sequences = [rescoring.tokens_of(number) for number in numbers]
            for number, values in zip(numbers, trainer.score(sequences, temperature=temperature), strict=True):
                rescoring.put_scores(logprobs, number, values)
        return logprobs
