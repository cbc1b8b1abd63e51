"""Starts the engine of a trial cold, scores both sides after every sync, and looks for the module where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ckptcheck.live.refit.draft import Acceptance, find_untrained, measure_acceptance
from ckptcheck.live.refit.expert_slots import Slots, read_slots
from ckptcheck.live.refit.module_errors import (
    StartOracle,
    capture_three_sides,
    find_first_difference,
    has_room_for_oracle,
)
from ckptcheck.live.refit.noise_floor import measure_noise_floor, measure_rounding
from ckptcheck.live.refit.observations import ImageProbe, Sync
from ckptcheck.live.refit.trace_queries import compare_scoring, may_hide_difference
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.activations import ActivationSource
from ckptcheck.live.runtime.engines.base import Engine, HostScalars, SequenceScores, TensorDigests
from ckptcheck.live.runtime.engines.capabilities import find_able, why_unable
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import Trainer

TEXT_TOKENS = 12
"""Tokens of text that follow the image and are scored."""


@dataclass(frozen=True)
class ColdLoad:
    """What an engine is after it was started cold from the trainer's weights."""

    manifest: TensorDigests
    scalars: HostScalars
    slots: Slots
    scores: tuple[SequenceScores, ...] = ()
    probe: SequenceScores | None = None
    """Score of the sequence that is in the prefix cache of the other engine."""
    acceptance: float | None = None
    """Tokens of a draft model that it accepts; None without one."""
    image: tuple[float, ...] = ()
    """Logprobs after an image; () for a model that takes none."""


def observe_trainer(trial: TrialState, trainer: Trainer) -> None:
    """Note what the trainer holds, and which layers of the draft it does not hold and no sync brings."""
    observed, draft = trial.observed, trial.draft
    observed.trainer, observed.weights = trainer.info, tuple(trainer.weights())
    if draft is None:
        return
    exported = {weight.name for weight in observed.weights}
    lacking = () if draft.is_own_model else find_untrained(draft.source, exported)
    draft.hold(lacking)
    if draft.is_sent:
        observed.sent_draft = draft.names
    else:
        observed.untrained = lacking


def start_cold(trial: TrialState, trainer: Trainer, step: int) -> Engine:
    """Save the trainer's weights, and start the engine cold from them."""
    folder = trial.folder / f"step{step}"
    folder.mkdir()
    trainer.save(folder)
    if trial.draft is not None:
        trial.draft.save(folder)
    return trial.start_engine(folder)


def start_again(trial: TrialState, step: int) -> Engine:
    """Start the engine cold once more from the weights of a step, with its experts where they lie by then."""
    engine = trial.start_engine(trial.folder / f"step{step}")
    if step:
        follow_moves(trial, engine)
    return engine


def follow_moves(trial: TrialState, reference: Engine) -> None:
    """Repeat in a cold load the move of experts that the engine made."""
    balancing = find_able(reference, "expert copies")
    if trial.observed.expert_move is not None and balancing is not None:
        balancing.rebalance_experts()


def measure_cold_load(trial: TrialState, trainer: Trainer, step: int) -> ColdLoad:
    """Start the engine cold from the stepped weights, digest and score it, and close it again."""
    engine, inputs = start_cold(trial, trainer, step), trial.inputs
    try:
        follow_moves(trial, engine)
        manifest, slots = trial.digest_tensors(engine), read_slots(engine)
        if not trial.settings.logprobs:
            # some numbers are made by the first forward pass
            engine.score([inputs.sequences[0]], decode=1)
            return ColdLoad(manifest, trial.read_scalars(engine), slots)
        # the probe first: nothing is in its cache then
        probe, scores = inputs.score_cache_probe(engine), inputs.score_engine(engine)
        acceptance, image = measure_acceptance(engine, inputs.sequences), score_image(trial, engine)
        return ColdLoad(manifest, trial.read_scalars(engine), slots, scores, probe, acceptance, image)
    finally:
        engine.close()


def build_image_prompt(image_token: int | None, sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of an image and of the text after it; () for a model that takes no image."""
    return () if image_token is None else (image_token, *sequence[:TEXT_TOKENS])


def score_image(trial: TrialState, engine: Engine) -> tuple[float, ...]:
    """Have the engine score the image, which it then keeps; () where it does not take it, and the trace says why."""
    observed = trial.observed
    if not trial.image or observed.images_skipped:
        return ()
    able = find_able(engine, "images")
    if able is None:
        observed.images_skipped = why_unable(engine, "images")
        return ()
    try:
        able.reset_prefix_cache()
        return able.score_image(trial.image)
    except RemoteError as error:
        observed.images_skipped = f"{engine.info.name} does not take the image: {error.message}"
        return ()


def compare_image(trial: TrialState, engine: Engine, after_sync: int, cold: tuple[float, ...]) -> None:
    """Note what the engine makes of the image after a sync, and once more after it dropped what it keeps of images.

    cold: what a cold load of the same weights makes of it; () where it does not take it.
    """
    able, failure = find_able(engine, "images"), ""
    if not cold or able is None:
        return
    kept: tuple[float, ...] = ()
    able.reset_prefix_cache()
    try:
        kept = able.score_image(trial.image)
    except RemoteError as error:
        failure = error.message
    able.reset_encoder_cache()
    after_reset = score_image(trial, engine)
    if failure or after_reset:
        trial.observed.image_probes.append(ImageProbe(after_sync, kept, after_reset, cold, failure))


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
