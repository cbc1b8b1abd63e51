"""Scores both sides of a trial after the cold load and after every sync, and measures what their logprobs differ by anyway."""

from __future__ import annotations

from dataclasses import replace

from ckptcheck.live.refit.cold_loads import ColdLoad, ColdLoads
from ckptcheck.live.refit.compute_path import Capturing
from ckptcheck.live.refit.draft import Acceptance, measure_acceptance
from ckptcheck.live.refit.engine_state import EngineState
from ckptcheck.live.refit.image_scoring import ImageProbes
from ckptcheck.live.refit.module_search import ModuleSearch
from ckptcheck.live.refit.noise_floor import measure_noise_floor, measure_rounding
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.scoring_inputs import ScoringInputs
from ckptcheck.live.refit.trace_queries import compare_scoring
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.engines.base import Engine, SequenceScores
from ckptcheck.live.runtime.trainers.base import Trainer


class TrialScores:
    """The scores of one trial. Where an engine scores otherwise than a cold load, it has the module looked for."""

    def __init__(
        self,
        observations: TrialObservations,
        phases: TrialPhases,
        inputs: ScoringInputs,
        state: EngineState,
        cold_loads: ColdLoads,
        modules: ModuleSearch,
        images: ImageProbes,
    ) -> None:
        self._observations, self._phases, self._inputs, self._state = observations, phases, inputs, state
        self._cold_loads, self._modules, self._images = cold_loads, modules, images
        self._cold_acceptance: float | None = None

    def score_cold_load(self, engine: Engine, trainer: Trainer) -> None:
        """Score the first cold load, and measure by how much both sides differ from themselves."""
        observations, inputs = self._observations, self._inputs
        with self._phases.run("score", "score the cold load"):
            observations.scorings.append(inputs.score_both_sides(engine, trainer, 0, inputs.score_engine(engine)))
            self._cold_acceptance = self._measure_acceptance(engine, 0)
        with self._phases.run("score", "measure the noise of both sides"):
            observations.noise_floor = measure_noise_floor(engine, trainer, inputs.sequences, inputs.decode)

    def fill_cache(self, engine: Engine, step: int) -> None:
        """Have the engine keep what it computes before the sync: keys and values of a prompt, and what it makes of an image."""
        with self._phases.run("score", f"fill the cache before the sync after step {step}"):
            self._images.score(engine)
            self._inputs.fill_cache(engine)

    def score(self, engine: Engine, trainer: Trainer, after_sync: int, reference: ColdLoad | None) -> None:
        """Score both sides after a sync. reference: of the same weights; None: the first cold load."""
        observations = self._observations
        cold: tuple[SequenceScores, ...] = observations.scorings[0].engine if reference is None else reference.scores
        probe = None if reference is None else reference.probe
        scoring = self._inputs.score_both_sides(engine, trainer, after_sync, cold, probe)
        observations.scorings.append(scoring)
        if observations.syncs[after_sync - 1].scalars:
            # some numbers are made anew by the first forward pass after a sync
            sync = replace(observations.syncs[after_sync - 1], scalars=self._state.read_scalars(engine))
            observations.syncs[after_sync - 1] = sync
        if reference is not None and reference.acceptance is not None:
            self._cold_acceptance = reference.acceptance
        self._measure_acceptance(engine, after_sync)
        if reference is not None:
            self._images.compare(engine, after_sync, reference.image)
        if compare_scoring(scoring).most <= observations.noise_floor.cold_load_tolerance:
            return
        sync = observations.syncs[after_sync - 1]
        if sync.manifest and not sync.has_wrong_parameter and isinstance(engine, Capturing):
            self._modules.compare_with_cold_load(engine, self._cold_loads.start_again, sync)

    def measure_rounding(self, trainer: Trainer) -> None:
        """Measure how far rounding moves logprobs. This perturbs the trainer's weights, so it is the last phase."""
        observations = self._observations
        assert observations.engine is not None
        with self._phases.run("score", "measure what rounding amounts to"):
            rounding = measure_rounding(
                trainer, [trainer.info.dtype, observations.engine.dtype], self._inputs.sequences
            )
            floor = observations.noise_floor
            observations.noise_floor = replace(floor, trainer=replace(floor.trainer, rounding=rounding))

    def _measure_acceptance(self, engine: Engine, after_sync: int) -> float | None:
        acceptance = measure_acceptance(engine, self._inputs.sequences)
        if acceptance is not None:
            cold = self._cold_acceptance or acceptance
            self._observations.acceptances.append(Acceptance(after_sync, acceptance, cold))
        return acceptance
