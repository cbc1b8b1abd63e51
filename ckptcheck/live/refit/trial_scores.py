"""Scores both sides of a trial after the cold load and after every sync, and looks for the module where they part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ckptcheck.live.refit.cold_loads import ColdLoad, start_again
from ckptcheck.live.refit.draft import Acceptance, measure_acceptance
from ckptcheck.live.refit.images import compare_image, score_image
from ckptcheck.live.refit.module_errors import (
    StartOracle,
    capture_three_sides,
    find_first_difference,
    has_room_for_oracle,
)
from ckptcheck.live.refit.noise_floor import measure_noise_floor, measure_rounding
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trace_queries import compare_scoring, may_hide_difference
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.activations import ActivationSource
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import find_able
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import Trainer


def score_cold_load(trial: TrialState, engine: Engine, trainer: Trainer) -> None:
    """Score the first cold load, and measure by how much both sides differ from themselves."""
    observed, inputs = trial.observed, trial.inputs
    with trial.phases.run("score", "scores of the cold load"):
        observed.scorings.append(inputs.score_both_sides(engine, trainer, 0, inputs.score_engine(engine)))
        trial.cold_acceptance = _note_acceptance(trial, engine, 0)
    with trial.phases.run("score", "measure the noise of both sides"):
        observed.noise_floor = measure_noise_floor(engine, trainer, inputs.sequences, inputs.decode)


def fill_cache(trial: TrialState, engine: Engine, step: int) -> None:
    """Have the engine keep what it computes before the sync: keys and values of a prompt, and what it makes of an image."""
    with trial.phases.run("score", f"fill the cache before the sync after step {step}"):
        score_image(trial, engine)
        trial.inputs.fill_cache(engine)


def score_sides(trial: TrialState, engine: Engine, trainer: Trainer, reference: ColdLoad | None) -> None:
    """Score both sides after the last sync. reference: of the same weights; None: the first cold load."""
    observed, number = trial.observed, len(trial.observed.syncs)
    cold = observed.scorings[0].engine if reference is None else reference.scores
    probe = None if reference is None else reference.probe
    scoring = trial.inputs.score_both_sides(engine, trainer, number, cold, probe)
    observed.scorings.append(scoring)
    if observed.syncs[-1].scalars:
        # some numbers are made anew by the first forward pass after a sync
        observed.syncs[-1] = replace(observed.syncs[-1], scalars=trial.read_scalars(engine))
    if reference is not None and reference.acceptance is not None:
        trial.cold_acceptance = reference.acceptance
    _note_acceptance(trial, engine, number)
    if reference is not None:
        compare_image(trial, engine, number, reference.image)
    if compare_scoring(scoring).most > observed.noise_floor.cold_load_tolerance:
        _find_module(trial, engine, observed.syncs[-1])


def _note_acceptance(trial: TrialState, engine: Engine, after_sync: int) -> float | None:
    acceptance = measure_acceptance(engine, trial.inputs.sequences)
    if acceptance is not None:
        cold = trial.cold_acceptance or acceptance
        trial.observed.acceptances.append(Acceptance(after_sync, acceptance, cold))
    return acceptance


def measure_rounding_last(trial: TrialState, trainer: Trainer) -> None:
    """Measure how far rounding moves logprobs. This perturbs the trainer's weights, so it is the last phase."""
    observed = trial.observed
    assert observed.engine is not None
    with trial.phases.run("score", "measure what rounding amounts to"):
        rounding = measure_rounding(trainer, [trainer.info.dtype, observed.engine.dtype], trial.inputs.sequences)
        floor = observed.noise_floor
        observed.noise_floor = replace(floor, trainer=replace(floor.trainer, rounding=rounding))


def _find_module(trial: TrialState, engine: Engine, sync: Sync) -> None:
    """Note the first module whose output differs from a cold load's, if every weight is right. A failure only costs the answer."""
    able = find_able(engine, "activations")
    if able is None or not sync.manifest or sync.has_wrong_parameter:
        return
    with trial.phases.run("start", f"look for the module whose output is wrong after sync {sync.number}"):
        start_cold = partial(start_again, trial, sync.step)
        try:
            found = find_first_difference(able, start_cold, trial.inputs.sequences[0], trial.folder)
        except (RemoteError, OSError) as error:
            trial.phases.log(f"  not found: {error}")
            return
    if found is not None:
        trial.observed.module_differences[sync.number] = found


def compare_with_float32(trial: TrialState, engine: Engine, trainer: Trainer, start_oracle: StartOracle | None) -> None:
    """Where trainer and engine may differ unseen, or do, compare the modules of both with float32.

    start_oracle: starts transformers in float32 with a checkpoint; None if nothing does.
    """
    observed = trial.observed
    if start_oracle is None or not observed.scorings or not may_hide_difference(observed):
        return
    if not isinstance(trainer, ActivationSource) or not isinstance(engine, ActivationSource):
        return
    step = observed.syncs[-1].step
    dtypes = engine.info.dtype, trainer.info.dtype
    with trial.phases.run("start", "compare the modules of both sides with float32"):
        start = partial(start_oracle, trial.folder / f"step{step}")
        if not has_room_for_oracle(observed.weights):
            observed.module_errors_skipped = "there is no memory for the weights once more in float32"
            return
        try:
            observed.module_errors = capture_three_sides(
                step, engine, trainer, start, trial.inputs.sequences[0], trial.folder, dtypes
            )
        except Exception as error:
            observed.module_errors_skipped = str(error) or type(error).__name__
