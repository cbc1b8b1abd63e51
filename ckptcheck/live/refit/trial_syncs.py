"""Syncs the engine of a trial, compares it with a cold load of the same weights, and looks for the causes of what differs.

Also compares what the trainer exports and saves with its source and its ranks, and names the weights of both sides. The identity of
an engine counts only where its cold load has that of the trainer: then it stores every weight so that its parts are known.
Elsewhere (packed, cast or padded weights) nothing is asked of it after the first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit import weight_identity
from ckptcheck.live.refit.diagnose_sync import diagnose_sync
from ckptcheck.live.refit.expert_slots import ExpertMove, Slots, count_moves, find_wrong_slots, read_slots
from ckptcheck.live.refit.export_comparison import compare_export, compare_with_source, find_saved_differently
from ckptcheck.live.refit.inflight import InflightUpdate
from ckptcheck.live.refit.logprob_diff import compare_logprobs
from ckptcheck.live.refit.observations import Key, Sync, is_draft
from ckptcheck.live.refit.sync import send_weights
from ckptcheck.live.refit.trace_queries import suspect_steps
from ckptcheck.live.refit.trial_scores import ColdLoad, start_again
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.refit.weight_identity import split_joined_weights
from ckptcheck.live.runtime.engines.base import Arrival, Engine, LoadedParameter, ScrambleResult
from ckptcheck.live.runtime.engines.capabilities import find_able
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import ShardDigest, ShardedTrainer, Trainer
from ckptcheck.runs.history.record import utc_now


def scramble(trial: TrialState, engine: Engine) -> ScrambleResult:
    """Overwrite the weights with marks, except those of a draft model that no sync sends."""
    observed = trial.observed
    if observed.sent_draft or observed.untrained:
        return engine.scramble_weights(keep_draft=not observed.sent_draft)
    return engine.scramble_weights()


def sync_weights(
    trial: TrialState,
    trainer: Trainer,
    engine: Engine,
    step: int,
    bucket_bytes: int,
    reference: ColdLoad,
    phase: str,
    *,
    is_marked: bool = False,
) -> None:
    """Sync once, compare the engine with the reference, and look for the causes of what differs.

    is_marked: whether the trial wrote marks before this sync.
    """
    observed, settings = trial.observed, trial.settings
    start_time = time.monotonic()
    with trial.phases.run("sync", phase):
        sent = dict(trainer.digests())
        sent_seconds = time.monotonic() - start_time
        number = len(observed.syncs) + 1
        request = InflightUpdate(settings.pause, trial.inputs.prompt, str(number)) if settings.pause else None
        is_timed = step > 0 and all(sync.step != step for sync in observed.syncs)
        with (
            _at_own_speed(engine, is_timed=is_timed),
            _noted_arrivals(engine, tuple(sent), is_wanted=settings.weights, is_timed=is_timed) as noted,
        ):
            sync_start_time = time.monotonic()
            buckets, result = send_weights(trainer, engine, bucket_bytes, settings.transport, f"sync-{number}", request)
            sync_end_time = time.monotonic()
            if settings.clears_cache:
                engine.reset_prefix_cache()
            draft = trial.draft
            draft_answer = None if draft is None else draft.send(engine, bucket_bytes, settings.transport)
        sync = Sync(
            number=number,
            step=step,
            time=utc_now(),
            bucket_bytes=bucket_bytes,
            buckets=len(buckets),
            bucket_names=tuple(bucket.names for bucket in buckets),
            nbytes=sum(bucket.nbytes for bucket in buckets),
            answer=replace(result, seconds=result.seconds - noted.seconds),
            draft_answer=draft_answer,
            sent=sent,
            arrived=noted.arrived,
            loaded=noted.loaded,
            manifest=trial.digest_tensors(engine) if settings.weights else {},
            reference=reference.manifest if settings.weights else {},
            scalars=trial.read_scalars(engine) if settings.weights else {},
            reference_scalars=reference.scalars if settings.weights else {},
            seconds=sync_end_time - sync_start_time - noted.seconds,
            sent_seconds=sent_seconds,
            inflight_request=request.request if request else None,
        )
        memory = engine.memory_bytes()
        if settings.weights:
            sync = compare_slots(trial, engine, sync, reference.slots)
            identify_engine(trial, engine, number)
        is_different = any(not is_draft(name) for _, name in sync.differing_tensors)
        sync = replace(sync, check_seconds=time.monotonic() - sync_end_time)
        if is_marked and settings.weights:
            sync = replace(sync, unwritten_parts=engine.find_unwritten(), was_marked=True)
    observed.memory.append(memory)
    observed.syncs.append(sync)
    if is_different:
        with trial.phases.run("start", f"look for causes after sync {number}"):
            observed.syncs[-1] = diagnose_sync(
                engine, partial(start_again, trial, step), sync, trial.folder, observed.weights
            )


@contextmanager
def _at_own_speed(engine: Engine, *, is_timed: bool) -> Iterator[None]:
    """Let a timed update run at the engine's own speed: the engine fills none of the memory that it allocates.

    Other updates fill it, and so show what was allocated and not written. Seconds of the first sync after a step are then those of
    a job.
    """
    able = find_able(engine, "timed updates") if is_timed else None
    if able is not None:
        able.time_updates(True)
    yield
    if able is not None:
        able.time_updates(False)


@dataclass
class _NotedArrivals:
    """What passed through the loader during one update: nothing where nothing was noted."""

    arrived: tuple[Arrival, ...] | None = None
    loaded: Mapping[Key, LoadedParameter] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds of the update that were spent on digests of what the loader left."""


@contextmanager
def _noted_arrivals(
    engine: Engine, expected: Sequence[str], *, is_wanted: bool, is_timed: bool
) -> Iterator[_NotedArrivals]:
    """Note what passes through the engine's loader during an update, if the engine can.

    is_timed: the update runs at the engine's own speed: what comes is not digested, and the time for what it leaves is measured.
    """
    noted = _NotedArrivals()
    able = find_able(engine, "arrivals") if is_wanted else None
    if able is None:
        yield noted
        return
    able.record_arrivals(expected, is_brief=is_timed)
    yield noted
    found = able.read_arrivals()
    noted.arrived, noted.loaded = None if is_timed else found.arrived, found.parameters
    noted.seconds = found.seconds if is_timed else 0.0


def compare_ranks(trial: TrialState, trainer: Trainer, step: int) -> None:
    """Note which weights the trainer's ranks hold different copies of; a trainer of one rank has no layout."""
    if trainer.info.layout:
        trial.observed.replica_mismatch[step] = trainer.mismatched_replicas()


def compare_source(trial: TrialState) -> None:
    """Compare what the first sync sent with what the trainer loaded, where that is known."""
    observed = trial.observed
    if trial.source is None:
        return
    with trial.phases.run("sync", "compare the export with the source"):
        observed.source_comparison = compare_with_source(
            trial.source, observed.weights, observed.syncs[0].sent, trial.folder / "step0"
        )


def compare_shards(trial: TrialState, trainer: Trainer, step: int) -> None:
    """Compare what the trainer exports now with what its ranks hold, and name the set of weights that they hold."""
    if not isinstance(trainer, ShardedTrainer):
        return
    observed = trial.observed
    with trial.phases.run("sync", "compare the export with what the trainer's ranks hold"):
        try:
            pieces = split_joined_weights(observed.weights, trial.source).pieces
        except EvidenceError:
            pieces = {}  # `identify_trainer` says it
        shards = trainer.shard_digests(pieces)
        compared = compare_export(step, shards, observed.weights, observed.export_comparisons)
        observed.export_comparisons.append(compared)
        identify_trainer(trial, shards, step)


def compare_saved(trial: TrialState) -> None:
    """Where an engine is not what it should be, see whether the cold load's checkpoint is what the trainer exports."""
    observed = trial.observed
    steps = suspect_steps(observed.syncs, observed.scorings, observed.noise_floor.trainer_tolerance)
    if not steps:
        return
    with trial.phases.run("sync", "compare the saved checkpoints with the export"):
        for number, each in enumerate(observed.export_comparisons):
            if each.step in steps:
                sent = next(sync.sent for sync in observed.syncs if sync.step == each.step)
                names = find_saved_differently(observed.weights, sent, trial.folder / f"step{each.step}")
                observed.export_comparisons[number] = replace(each, saved_differently=names)


def identify_trainer(trial: TrialState, shards: Sequence[ShardDigest], step: int) -> None:
    """Note the identity of what the trainer's ranks hold after a step."""
    observed = trial.observed
    try:
        named = weight_identity.identify_trainer("the trainer", shards, observed.weights, trial.source)
    except EvidenceError as error:
        observed.identity_gaps["trainer"] = error.message
        return
    observed.trainer_identities[step] = named.identity
    cold = observed.engine_identities.get(0)
    if step == 0 and cold is not None and cold != named.identity:
        observed.identity_gaps["engine"] = "its cold load stores weights in another form than the trainer exports"


def identify_engine(trial: TrialState, engine: Engine, number: int) -> None:
    """Note the identity of what the engine holds after a sync. number: of the sync, 0 after the cold load."""
    observed, able = trial.observed, find_able(engine, "part sums")
    if observed.identity_gaps or able is None:
        return
    if observed.expert_move is not None:
        observed.identity_gaps["engine"] = "it moved its experts between two syncs, and its tensors do not say where to"
        return
    try:
        if not number:
            held, ranks = observed.cold_manifest, engine.info.ranks
            trial.weight_parts = weight_identity.list_weight_parts(held, observed.weights, trial.source, ranks)
        sums = able.sum_parts(trial.weight_parts)
        named = weight_identity.identify_engine("the engine", trial.weight_parts, sums, observed.weights, trial.source)
    except (EvidenceError, RemoteError) as error:
        observed.identity_gaps["engine"] = error.message
        return
    observed.engine_identities[number] = named.identity


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
