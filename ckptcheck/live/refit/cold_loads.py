"""Starts the engine of a trial cold from what the trainer holds: the reference of every sync."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ckptcheck.live.refit.draft import find_untrained, measure_acceptance
from ckptcheck.live.refit.draft_weights import DraftWeights
from ckptcheck.live.refit.engine_state import EngineState
from ckptcheck.live.refit.expert_moves import ExpertMoves
from ckptcheck.live.refit.expert_slots import Slots, read_slots
from ckptcheck.live.refit.image_scoring import ImageProbes
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.scoring_inputs import ScoringInputs
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


class StartEngine(Protocol):
    """Starts an engine cold from a checkpoint."""

    def __call__(self, checkpoint: Path) -> Engine:
        """Start it. Raises what the engine's worker raises."""
        ...


class ColdLoads:
    """The cold loads of one trial."""

    def __init__(
        self,
        start: StartEngine,
        folder: Path,
        draft: DraftWeights | None,
        observations: TrialObservations,
        inputs: ScoringInputs,
        state: EngineState,
        experts: ExpertMoves,
        images: ImageProbes,
    ) -> None:
        """Name what the cold loads need.

        Args:
            start: starts the engine, each time in a process of its own.
            folder: for the checkpoints.
            draft: what the engine drafts with and the trainer does not hold, which the cold loads get from there; None without it.
            observations: tell what the trainer does not hold.
            inputs: what is scored.
            state: reads what an engine holds.
            experts: where the experts of the other engine lie.
            images: an image that is scored.

        """
        self._start, self._folder, self._draft = start, folder, draft
        self._observations, self._inputs, self._state, self._experts = observations, inputs, state, experts
        self._images = images

    def observe_trainer(self, trainer: Trainer) -> None:
        """Note what the trainer holds, and which layers of the draft it does not hold and no sync brings."""
        observations = self._observations
        observations.trainer, observations.weights = trainer.info, tuple(trainer.weights())
        if (draft := self._draft) is not None:
            exported = {weight.name for weight in observations.weights}
            lacking = () if draft.is_own_model else find_untrained(draft.source, exported)
            draft.hold(lacking)
            if draft.is_sent:
                observations.sent_draft = draft.names
            else:
                observations.untrained = lacking

    def start(self, trainer: Trainer, step: int) -> Engine:
        """Save the trainer's weights, and start the engine cold from them."""
        folder = self._folder / f"step{step}"
        folder.mkdir()
        trainer.save(folder)
        if self._draft is not None:
            self._draft.save(folder)
        return self._start(folder)

    def measure(self, trainer: Trainer, step: int, *, has_scores: bool) -> ColdLoad:
        """Start the engine cold from the stepped weights, digest and score it, and close it again."""
        engine, inputs = self.start(trainer, step), self._inputs
        try:
            self._experts.follow(engine)
            manifest, slots = self._state.digest_tensors(engine), read_slots(engine)
            if not has_scores:
                # some numbers are made by the first forward pass
                engine.score([inputs.sequences[0]], decode=1)
                return ColdLoad(manifest, self._state.read_scalars(engine), slots)
            # the probe first: nothing is in its cache then
            probe, scores = inputs.score_cache_probe(engine), inputs.score_engine(engine)
            acceptance, image = measure_acceptance(engine, inputs.sequences), self._images.score(engine)
            return ColdLoad(manifest, self._state.read_scalars(engine), slots, scores, probe, acceptance, image)
        finally:
            engine.close()

    def start_again(self, step: int) -> Engine:
        """Start the engine cold once more from the weights of a step, with its experts where they lie by then."""
        engine = self._start(self._folder / f"step{step}")
        return self._experts.follow(engine) if step else engine
