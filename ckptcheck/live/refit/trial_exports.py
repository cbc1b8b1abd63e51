"""Compares what the trainer of a trial exports and saves with its source and its ranks, and names the weights of both sides.

The identity of an engine counts only where its cold load has that of the trainer: then it stores every weight so that its parts
are known. Elsewhere (packed, cast or padded weights) nothing is asked of it after the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit import weight_identity
from ckptcheck.live.refit.export_comparison import compare_export, compare_with_source, find_saved_differently
from ckptcheck.live.refit.joined_weights import split_joined_weights
from ckptcheck.live.refit.trace_queries import suspect_steps
from ckptcheck.live.refit.trial_state import TrialState
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import find_able
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import ShardDigest, ShardedTrainer, Trainer


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
