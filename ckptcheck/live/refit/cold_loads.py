"""Starts the engine of a trial cold from what the trainer holds: the reference of every sync."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.live.refit.draft import find_untrained, measure_acceptance
from ckptcheck.live.refit.expert_moves import follow_moves
from ckptcheck.live.refit.expert_slots import Slots, read_slots
from ckptcheck.live.refit.images import score_image
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.base import Engine, HostScalars, SequenceScores, TensorDigests
from ckptcheck.live.runtime.trainers.base import Trainer


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
