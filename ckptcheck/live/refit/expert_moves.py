"""Moves experts of an engine between two syncs, as its own balancer does (EPLB), and keeps references in step with it.

Nothing happens without redundant experts.
"""

from __future__ import annotations

from dataclasses import replace

from ckptcheck.live.refit.expert_slots import ExpertMove, Slots, count_moves, find_wrong_slots, read_slots
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.observations import Sync
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import find_able


def move_experts(trial: TrialState, engine: Engine) -> None:
    """Make the engine move its experts; compare every slot with the first cold load, and logprobs with the last scoring."""
    balancing, observed, phases = find_able(engine, "expert copies"), trial.observed, trial.phases
    if balancing is None:
        return
    with phases.run("sync", "move experts between their slots"):
        before = balancing.digest_expert_slots()
        # the finding on the sync itself has the slots that were wrong before the move
        known = {(each.key[1], each.expert) for each in find_wrong_slots(before, trial.cold_slots, {})}
        balancing.rebalance_experts()
        after = balancing.digest_expert_slots()
        found = find_wrong_slots(after, trial.cold_slots, {})
        wrong = [each for each in found if (each.key[1], each.expert) not in known]
    logprobs = None
    if observed.scorings:
        with phases.run("score", "score with moved experts"):
            now = trial.inputs.score_engine(engine)
        then = observed.scorings[-1].engine
        logprobs = compare_logprobs(*([each.prompt_logprobs for each in side] for side in (then, now)))
    slots = sum(len(each.experts) for each in after.values())
    observed.expert_move = ExpertMove(count_moves(before, after), slots, tuple(wrong), logprobs)
    trial.moved_tensors = engine.digest_tensors()


def follow_moves(trial: TrialState, reference: Engine) -> None:
    """Repeat in a cold load the move of experts that the engine made."""
    balancing = find_able(reference, "expert copies")
    if trial.observed.expert_move is not None and balancing is not None:
        balancing.rebalance_experts()


def compare_slots(trial: TrialState, engine: Engine, sync: Sync, reference: Slots) -> Sync:
    """Return the sync with the slots that are not those of the reference.

    A tensor whose experts lie elsewhere in the reference is compared slot by slot only.
    """
    slots = read_slots(engine)
    if not slots:
        return sync
    elsewhere = {key for key, each in slots.items() if key in reference and reference[key].experts != each.experts}
    return replace(
        sync,
        wrong_slots=find_wrong_slots(slots, reference, trial.cold_slots if sync.step else {}),
        slots=sum(len(each.experts) for each in slots.values()),
        manifest={key: entry for key, entry in sync.manifest.items() if key not in elsewhere},
        reference={key: entry for key, entry in sync.reference.items() if key not in elsewhere},
    )
