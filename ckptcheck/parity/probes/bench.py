"""What probes work with: an engine that is set up as each asks, a trainer, prompts, and an update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ckptcheck.engines.base import Engine, Parcel
from ckptcheck.engines.sampling import Generation, Sampling
from ckptcheck.engines.switches import Switches
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.trouble import HostDied, VerbError
from ckptcheck.rule import Skip
from ckptcheck.trainers.base import Trainer, TrainerInfo

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Setup:
    """How an engine is to be started. length: tokens of the longest sequence, 0 for the run's own. dtype: "" for its own.

    needs: switches without which the probe that asks cannot look; set-ups that differ in nothing else share a start.
    """

    switches: Switches = field(default_factory=Switches)
    length: int = 0
    dtype: str = ""
    needs: frozenset[str] = field(default=frozenset(), compare=False)

    def having(self, **switches: Any) -> Setup:
        """Return this set-up with other switches, which it then needs: also one that the user's own has as well."""
        return replace(self, switches=replace(self.switches, **switches), needs=self.needs | frozenset(switches))

    def __str__(self) -> str:
        parts = [
            *([f"length={self.length}"] if self.length else []),
            *([self.dtype] if self.dtype else []),
            *([str(self.switches)] if self.switches.given() or not (self.length or self.dtype) else []),
        ]
        return " ".join(parts)


Probe = Generator[Setup, Engine, object]
"""A probe: asks for a set-up, is sent an engine that has it, asks for the next, and returns what it saw."""


class StartEngine(Protocol):
    """Starts an engine. instead: the one that ran until now, whose process may be used; it is given up."""

    def __call__(self, setup: Setup, instead: Engine | None) -> Engine:
        """Start it."""
        ...


class StartTrainer(Protocol):
    """Starts a trainer in place of the one that ran until now, if any."""

    def __call__(self, dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
        """Start it."""
        ...


@dataclass
class Bench:
    """prompts: a few short ones that open an answer. vocabulary: rows of the embedding. ends: id of an end token → who says so.

    sampling: what the user's job samples with. setup: what the user's engine is started with. chat: a conversation's text,
    its tokens and its messages by the checkpoint's own template, None where it has none. folder: for what is written on
    the way. length: tokens of the longest sequence. block: tokens that the prefix cache keeps together. response, long:
    tokens of the usual and of the long response. dtype, head_fp32: of the user's trainer. timeout: seconds for any
    one probe in one set-up. trainer_info: of the first one.
    """

    prompts: Sequence[Tokens]
    vocabulary: int
    folder: Path
    start_trainer: StartTrainer | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(0.7))
    setup: Setup = field(default_factory=Setup)
    ends: Mapping[int, str] = field(default_factory=dict)
    chat: tuple[str, Tokens, tuple[Mapping[str, str], ...]] | None = None
    length: int = 512
    block: int = 128
    response: int = 32
    long: int = 64
    dtype: str = "float32"
    head_fp32: bool = False
    timeout: float | None = None
    say: Callable[[str], None] = lambda _: None
    _trainer: Trainer | None = None
    _kept: tuple[str, bool] = ("", False)
    _parcels: tuple[list[Parcel], list[Parcel]] | None = None

    trainer_info: TrainerInfo | None = None

    def trainer(self, dtype: str = "", head_fp32: bool | None = None) -> Trainer:
        """Return a trainer that holds the checkpoint. Raises Skip where there is none."""
        if self.start_trainer is None:
            raise Skip("it compares with a trainer, and none was asked for (--trainer)")
        wanted = dtype or self.dtype, self.head_fp32 if head_fp32 is None else head_fp32
        if self._trainer is None or self._kept != wanted:
            try:
                self._trainer = self.start_trainer(*wanted, self._trainer)
            except (VerbError, HostDied):
                raise
            except CkptcheckError as error:  # it is not installed, or does not take this model
                raise Skip(f"it compares with a trainer: {error.message}") from error
            self._kept, self.trainer_info = wanted, self.trainer_info or self._trainer.info
        return self._trainer

    def updates(self) -> tuple[list[Parcel], list[Parcel]]:
        """Return two updates: the checkpoint's weights, and others near them. Raises Skip where there is no trainer."""
        if self._parcels is None:
            trainer = self.trainer()
            before = trainer.export(64 << 20)
            trainer.perturb(0.05, seed=1)
            self._parcels = before, trainer.export(64 << 20)
            self._kept = ("", False)  # it holds other weights now
        return self._parcels

    def responses(self, engine: Engine, number: int, heat: float = 1.0) -> list[Generation]:
        """Have every prompt answered by so many tokens, with no cached prefix."""
        engine.reset_prefix_cache()
        asked = [Sampling(heat, max_tokens=number, seed=place, ignore_eos=True) for place in range(len(self.prompts))]
        return engine.generate(self.prompts, asked)

    def sequences(self, made: Sequence[Generation]) -> list[Tokens]:
        """Return prompts and responses."""
        return [(*prompt, *each.tokens) for prompt, each in zip(self.prompts, made, strict=True)]

    def followed(self, engine: Engine, sequences: Sequence[Tokens]) -> list[tuple[float, ...]]:
        """Have the responses of the first sequences decoded again, one sequence at a time."""
        engine.reset_prefix_cache()
        return [
            engine.follow([tokens], len(prompt))[0] for prompt, tokens in zip(self.prompts, sequences, strict=False)
        ]

    def of_response(self, scores: Sequence[Sequence[float]]) -> list[Sequence[float]]:
        """Cut logprobs of all tokens but the first down to those of the responses."""
        return [values[len(prompt) - 1 :] for prompt, values in zip(self.prompts, scores, strict=False)]

    def close(self) -> None:
        """End the trainer; the next one who asks gets another."""
        if self._trainer is not None:
            self._trainer.close()
        self._trainer, self._parcels = None, None
