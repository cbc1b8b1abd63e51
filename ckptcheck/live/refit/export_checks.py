"""Holds, within a trial, what the trainer exports and saves to what its ranks hold and to its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.live.refit.export_comparison import compare_export, find_saved_otherwise
from ckptcheck.live.refit.identity_checks import IdentityChecks
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.source_comparison import compare_with_source
from ckptcheck.live.refit.trace_queries import suspect_steps
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.trainers.base import ShardedTrainer, Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class ExportChecks:
    """The checks of one trial's exports; what they find is noted in its observations."""

    def __init__(
        self, observations: TrialObservations, phases: TrialPhases, folder: Path, identities: IdentityChecks
    ) -> None:
        """Args: folder: where the trial saves its checkpoints, ``step0`` first. identities: of what the trainer holds."""
        self._observations, self._phases, self._folder = observations, phases, folder
        self._identities = identities

    def compare_ranks(self, trainer: Trainer, step: int) -> None:
        """Note which weights the trainer's ranks hold different copies of; a trainer of one rank has no layout."""
        if trainer.info.layout:
            self._observations.replica_mismatch[step] = trainer.mismatched_replicas()

    def compare_source(self, source: Checkpoint) -> None:
        """Compare what the first sync sent with what the trainer loaded."""
        observations = self._observations
        with self._phases.run("sync", "compare the export with the source"):
            observations.source_comparison = compare_with_source(
                source, observations.weights, observations.syncs[0].sent, self._folder / "step0"
            )

    def compare_shards(self, trainer: Trainer, step: int) -> None:
        """Compare what the trainer exports now with what its ranks hold."""
        if not isinstance(trainer, ShardedTrainer):
            return
        observations = self._observations
        with self._phases.run("sync", "compare the export with what the trainer's ranks hold"):
            shards = trainer.shard_digests(self._identities.list_pieces())
            compared = compare_export(step, shards, observations.weights, observations.export_comparisons)
            observations.export_comparisons.append(compared)
            self._identities.identify_trainer(shards, step)

    def compare_saved(self) -> None:
        """Where an engine is not what it should be, see whether the cold load's checkpoint is what the trainer exports."""
        observations = self._observations
        steps = suspect_steps(observations.syncs, observations.scorings, observations.noise_floor.trainer_tolerance)
        if not steps:
            return
        with self._phases.run("sync", "compare the saved checkpoints with the export"):
            for number, each in enumerate(observations.export_comparisons):
                if each.step in steps:
                    sent = next(sync.sent for sync in observations.syncs if sync.step == each.step)
                    names = find_saved_otherwise(observations.weights, sent, self._folder / f"step{each.step}")
                    observations.export_comparisons[number] = replace(each, saved_otherwise=names)
