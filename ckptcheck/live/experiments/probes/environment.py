"""The environment of probes: an engine with the set-up that each probe requests, a trainer, prompts, and weight updates."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.experiment import Experiment
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.engines.base import Bucket, Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.trainers.base import Trainer, TrainerInfo

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class EngineSetup:
    """The options that an engine starts with. Set-ups that differ only in `needs` share a start."""

    switches: Switches = field(default_factory=Switches)
    length: int = 0
    """Tokens of the longest sequence; 0: the length of the run."""
    dtype: str = ""
    """Compute dtype; "": the dtype of the run."""
    needs: frozenset[str] = field(default=frozenset(), compare=False)
    """Switches without which the probe cannot run."""

    def with_switches(self, **switches: Any) -> EngineSetup:
        """Return this set-up with other switches, and require them, even those that the user has set already."""
        return replace(self, switches=replace(self.switches, **switches), needs=self.needs | frozenset(switches))

    def __str__(self) -> str:
        parts = [
            *([f"length={self.length}"] if self.length else []),
            *([self.dtype] if self.dtype else []),
            *([str(self.switches)] if self.switches.to_dict() or not (self.length or self.dtype) else []),
        ]
        return " ".join(parts)


ProbeRun = Generator[EngineSetup, Engine, object]
"""A running probe: yields a set-up, receives an engine with it, yields the next, and returns its result."""


StartProbeEngine = Callable[[EngineSetup, Engine | None], Engine]
"""Starts an engine with a set-up; gets the engine that it replaces, whose process it may take over."""
StartProbeTrainer = Callable[[str, bool, Trainer | None], Trainer]
"""Starts a trainer: its dtype, whether its head is in float32, and the trainer that it replaces, whose process it may take over."""


@dataclass
class ProbeEnvironment:
    """The prompts, options and processes that all probes of a run share."""

    prompts: Sequence[Tokens]
    """A few short prompts, as token ids."""
    vocabulary: int
    """Rows of the embedding."""
    folder: Path
    """For temporary files."""
    start_trainer: StartProbeTrainer | None = None
    """None: no trainer is available."""
    sampling: Sampling = field(default_factory=lambda: Sampling(0.7))
    """The sampling of the user's job."""
    setup: EngineSetup = field(default_factory=EngineSetup)
    """The set-up of the user's engine."""
    stop_tokens: Mapping[int, str] = field(default_factory=dict)
    """Id of a stop token → the file that names it."""
    conversation: tuple[str, Tokens, tuple[Mapping[str, str], ...]] | None = None
    """Text, tokens and messages of a conversation by the checkpoint's own template; None where it has none."""
    length: int = 512
    """Tokens of the longest sequence."""
    block: int = 128
    """Tokens of a block of the prefix cache."""
    response: int = 32
    """Tokens of a usual response."""
    long: int = 64
    """Tokens of a long response."""
    dtype: str = "float32"
    """Compute dtype of the user's trainer."""
    head_fp32: bool = False
    """The user's trainer computes the output head in float32."""
    timeout: float | None = None
    """Seconds for any one probe in one set-up."""
    say: Callable[[str], None] = lambda _: None
    trainer_info: TrainerInfo | None = None
    """The first trainer that started."""
    _trainer: Side[tuple[str, bool], Trainer] | None = None
    _updates: tuple[list[Bucket], list[Bucket]] | None = None

    def trainer(self, dtype: str = "", head_fp32: bool | None = None) -> Trainer:
        """Return a trainer that holds the checkpoint's weights. Raises Skip without a trainer."""
        start = self.start_trainer
        if start is None:
            raise Skip("it compares with a trainer, and none was asked for (--trainer)")
        side = self._trainer = self._trainer or Side(lambda setup, instead: start(*setup, instead))
        options = dtype or self.dtype, self.head_fp32 if head_fp32 is None else head_fp32
        try:
            trainer = side.ready(options)
        except (RemoteError, WorkerDied):
            raise
        except (CkptcheckError, Skip) as error:
            # the trainer is not installed, or does not take this model
            raise Skip(f"it compares with a trainer: {getattr(error, 'message', error)}") from error
        self.trainer_info = self.trainer_info or trainer.info
        return trainer

    def updates(self) -> tuple[list[Bucket], list[Bucket]]:
        """Return two updates: the checkpoint's weights, and weights near them. Raises Skip without a trainer."""
        if self._updates is None:
            trainer = self.trainer()
            original = trainer.export(64 << 20)
            trainer.perturb(0.05, seed=1)
            self._updates = original, trainer.export(64 << 20)
            # the trainer holds other weights now, so the next request starts a new one
            assert self._trainer is not None
            self._trainer.setup = None
        return self._updates

    def responses(self, engine: Engine, number: int, temperature: float = 1.0) -> list[Generation]:
        """Return a response of `number` tokens to every prompt, computed without a cached prefix."""
        engine.reset_prefix_cache()
        sampling = [
            Sampling(temperature, max_tokens=number, seed=index, ignore_eos=True) for index in range(len(self.prompts))
        ]
        return engine.generate(self.prompts, sampling)

    def sequences(self, made: Sequence[Generation]) -> list[Tokens]:
        """Return the sequences of prompt and response."""
        return [(*prompt, *generation.tokens) for prompt, generation in zip(self.prompts, made, strict=True)]

    def followed(self, engine: Engine, sequences: Sequence[Tokens]) -> list[tuple[float, ...]]:
        """Decode the responses again, one sequence at a time, and return the logprobs of their tokens."""
        engine.reset_prefix_cache()
        return [
            engine.score_by_decode([tokens], len(prompt))[0]
            for prompt, tokens in zip(self.prompts, sequences, strict=False)
        ]

    def of_response(self, scores: Sequence[Sequence[float]]) -> list[Sequence[float]]:
        """Return the logprobs of the responses. scores: logprobs of all tokens but the first."""
        return [values[len(prompt) - 1 :] for prompt, values in zip(self.prompts, scores, strict=False)]

    def close(self) -> None:
        """Close the trainer; the next request starts another."""
        if self._trainer is not None:
            self._trainer.discard()
        self._trainer, self._updates = None, None


Probe = Experiment[[ProbeEnvironment], ProbeRun]
"""An experiment that yields the set-ups of the engine that it needs, and gets an engine with each."""
