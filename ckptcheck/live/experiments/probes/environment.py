"""Runs probes with as few starts of the engine as their set-ups allow, and gives them a trainer, prompts and weight updates."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.engines.base import Bucket, Engine, EngineInfo
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
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


Probe = Callable[[ProbeEnvironment], ProbeRun]
"""Yields the set-ups of the engine that it needs, and gets an engine with each. Raises Skip where it cannot run."""


class _ProbeRuns:
    """The running probes, the engine that they take turns with, and what became of each; one in no table is not over."""

    def __init__(self, environment: ProbeEnvironment, start: StartProbeEngine, probes: Mapping[str, ProbeRun]) -> None:
        self._environment, self._probes = environment, probes
        self._engine = Side[EngineSetup, Engine](start)
        self.results: dict[str, object] = {}
        self.unavailable: dict[str, str] = {}
        """Probe → why it could not run."""
        self.failures: dict[str, str] = {}
        """Probe → what killed an engine or a trainer in it."""
        self.info: EngineInfo | None = None
        """The first engine that started."""
        self.waiting: dict[str, EngineSetup] = {}
        """Probe → the set-up that it waits for."""
        self.untaken: dict[str, str] = {}
        """Switch of the user → why the engine did not take it."""

    def step(self, name: str, advance: Callable[[], EngineSetup]) -> None:
        """Advance a probe to the next set-up that it needs, or to its end."""
        self.waiting.pop(name, None)
        try:
            with time_budget(self._environment.timeout):
                self.waiting[name] = advance()
        except StopIteration as end:
            self.results[name] = end.value
        except (Skip, RemoteError) as error:
            self.unavailable[name] = str(error)
        except (WorkerDied, WorkerTimeout) as error:
            self.failures[name] = str(error)
            self.close()

    def group(self) -> None:
        """Start the set-up that most probes wait for, unless it runs already, and advance these probes."""
        setup = self._next()
        names = [name for name, needed_setup in self.waiting.items() if needed_setup == setup]
        if setup != self._engine.setup:
            self._environment.say(f"starting the engine: {setup}")
        try:
            with time_budget(self._environment.timeout):
                engine = self._engine.ready(setup)
        except (WorkerDied, WorkerTimeout, RemoteError, Skip) as error:
            for name in names:
                del self.waiting[name]
                self.unavailable[name] = f"the engine did not start with {setup}: {error}"
            return
        self.info = self.info or engine.info
        self._note(setup, engine)
        for name in names:
            # the engine died; the remaining probes of this set-up run after a new start
            if self._engine.process is None:
                return
            reason = _describe_ignored_switches(self.waiting[name], engine)
            if reason:
                del self.waiting[name]
                self.unavailable[name] = reason
                continue
            self._environment.say(f"probing {name}")
            self.step(name, partial(self._probes[name].send, engine))

    def close(self) -> None:
        """End both sides; whoever needs one starts it anew."""
        self._engine.discard()
        self._environment.close()

    def _next(self) -> EngineSetup:
        """Return the running set-up if a probe waits for it, else the one that most probes wait for."""
        setups = list(self.waiting.values())
        if self._engine.setup in setups:
            return self._engine.setup
        return max(dict.fromkeys(setups), key=setups.count)

    def _note(self, setup: EngineSetup, engine: Engine) -> None:
        """Record and report once which of the user's switches the engine did not take."""
        user_switches, setup_switches = self._environment.setup.switches.to_dict(), setup.switches.to_dict()
        for name, reason in engine.ignored_switches.items():
            if name in user_switches and user_switches[name] == setup_switches.get(name) and name not in self.untaken:
                self.untaken[name] = reason
                self._environment.say(f"{name}: {reason}")


def _describe_ignored_switches(setup: EngineSetup, engine: Engine) -> str:
    """Name the switches that a probe needs and the engine did not take; "" if there is none."""
    return "; ".join(f"{name}: {reason}" for name, reason in engine.ignored_switches.items() if name in setup.needs)


def run_probes(
    target: str, environment: ProbeEnvironment, start: StartProbeEngine, probes: Mapping[str, Probe]
) -> ProbeTrace:
    """Run every probe; probes that wait for the same set-up share a start.

    A probe is skipped if the engine does not start with its set-up, or does not take its switch. An engine or a trainer that
    dies in a probe starts again for the next one.
    """
    running = {name: probe(environment) for name, probe in probes.items()}
    runs = _ProbeRuns(environment, start, running)
    try:
        for name, run in running.items():
            runs.step(name, partial(next, run))
        while runs.waiting:
            runs.group()
    finally:
        runs.close()
    return ProbeTrace(
        target,
        runs.info,
        environment.trainer_info,
        tuple(probes),
        runs.results,
        runs.unavailable,
        runs.failures,
        runs.untaken,
    )
