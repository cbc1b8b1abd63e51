"""Looks, within a trial, for the module that computes otherwise: than in a cold load, or than in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ckptcheck.live.refit.compute_path import Capturing, find_first_difference
from ckptcheck.live.refit.module_errors import ActivationSource, StartOracle, capture_three_sides, has_room_for_oracle
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.trace import Sync
from ckptcheck.live.refit.trace_queries import may_compute_otherwise
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import Trainer


class ModuleSearch:
    """The searches of one trial. They look for what hides: where one fails, what the trial has found is kept."""

    def __init__(
        self, observations: TrialObservations, phases: TrialPhases, folder: Path, sequence: tuple[int, ...]
    ) -> None:
        """Args: folder: where the trial saves its checkpoints; sequence: the tokens that go through the modules."""
        self._observations, self._phases, self._folder, self._sequence = observations, phases, folder, sequence

    def compare_with_cold_load(self, engine: Capturing, start: Callable[[int], Engine], sync: Sync) -> None:
        """Note the module that computes otherwise than in a cold load, although every weight is right.

        start: starts the engine cold from the weights of a step.
        """
        with self._phases.run("start", f"look for the module that computes otherwise after sync {sync.number}"):
            start_cold = partial(start, sync.step)
            try:
                found = find_first_difference(engine, start_cold, self._sequence, self._folder)
            except (RemoteError, OSError) as error:
                self._phases.log(f"  not found: {error}")
                return
        if found is not None:
            self._observations.module_differences[sync.number] = found

    def compare_with_float32(self, engine: Engine, trainer: Trainer, start_oracle: StartOracle | None) -> None:
        """Where trainer and engine may differ unseen, or do, compare the modules of both with float32.

        start_oracle: starts transformers in float32 with a checkpoint; None if nothing does.
        """
        observations = self._observations
        if start_oracle is None or not observations.scorings or not may_compute_otherwise(observations.to_trace()):
            return
        if not isinstance(trainer, ActivationSource) or not isinstance(engine, ActivationSource):
            return
        step = observations.syncs[-1].step
        dtypes = engine.info.dtype, trainer.info.dtype
        with self._phases.run("start", "compare the modules of both sides with float32"):
            start = partial(start_oracle, self._folder / f"step{step}")
            if not has_room_for_oracle(observations.weights):
                observations.module_errors_skipped = "there is no memory for the weights once more in float32"
                return
            try:
                observations.module_errors = capture_three_sides(
                    step, engine, trainer, start, self._sequence, self._folder, dtypes
                )
            except Exception as error:
                observations.module_errors_skipped = str(error) or type(error).__name__
