"""Moves experts of an engine between two syncs, as its own balancer does (EPLB), and keeps references in step with it."""

from __future__ import annotations

from dataclasses import replace

from ckptcheck.live.refit.expert_slots import (
    ExpertMove,
    Slots,
    count_moves,
    find_balancing_engine,
    find_wrong_slots,
    read_slots,
)
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.scoring_inputs import ScoringInputs
from ckptcheck.live.refit.trace import Sync
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.engines.base import Engine, TensorDigests


class ExpertMoves:
    """The experts of the engine of one trial: where they lie, and whether every copy is right. Idle without redundant experts."""

    def __init__(self, observations: TrialObservations, phases: TrialPhases, inputs: ScoringInputs) -> None:
        self._observations, self._phases, self._inputs = observations, phases, inputs
        self.cold: Slots = {}
        """Slots of the first cold load."""
        self._before: Slots = {}
        self.moved_tensors: TensorDigests = {}
        """What the engine held after the move; {} before it, and without one."""

    def observe_cold_load(self, engine: Engine) -> None:
        """Note the slots of the engine after its start."""
        self.cold = self._before = read_slots(engine)

    def move(self, engine: Engine) -> None:
        """Have the engine move its experts, and compare every slot with the first cold load, and logprobs with those before."""
        balancing, observations = find_balancing_engine(engine), self._observations
        if balancing is None:
            return
        with self._phases.run("sync", "move experts between their slots"):
            before = balancing.digest_expert_slots()
            # what the sync left wrong is told there
            known = {(each.key[1], each.expert) for each in find_wrong_slots(before, self.cold, {})}
            balancing.rebalance_experts()
            after = balancing.digest_expert_slots()
            wrong = [each for each in find_wrong_slots(after, self.cold, {}) if (each.key[1], each.expert) not in known]
        logprobs = None
        if observations.scorings:
            with self._phases.run("score", "score with moved experts"):
                now = self._inputs.score_engine(engine)
            then = observations.scorings[-1].engine
            logprobs = compare_logprobs(*([each.prompt_logprobs for each in side] for side in (then, now)))
        slots = sum(len(each.experts) for each in after.values())
        observations.expert_move = ExpertMove(count_moves(before, after), slots, tuple(wrong), logprobs)
        self.moved_tensors = engine.digest_tensors()

    def follow(self, reference: Engine) -> Engine:
        """Move the experts of a cold load as those of the engine were moved; return it."""
        if self._observations.expert_move is not None and (balancing := find_balancing_engine(reference)) is not None:
            balancing.rebalance_experts()
        return reference

    def compare(self, engine: Engine, sync: Sync, reference: Slots) -> Sync:
        """Return the sync with the slots that are not those of the reference.

        A tensor whose experts lie elsewhere in the reference is compared slot by slot only.
        """
        slots = read_slots(engine)
        if not slots:
            return sync
        elsewhere = {key for key, each in slots.items() if key in reference and reference[key].experts != each.experts}
        return replace(
            sync,
            wrong_slots=find_wrong_slots(slots, reference, self.cold if sync.step else {}),
            slots=sum(len(each.experts) for each in slots.values()),
            manifest={key: entry for key, entry in sync.manifest.items() if key not in elsewhere},
            reference={key: entry for key, entry in sync.reference.items() if key not in elsewhere},
        )
