"""Names, within a trial, the set of weights that the trainer holds after each step, and the engine after each sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit.joined_weights import split_joined_weights
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.weight_identity import identify_engine, identify_trainer, list_weight_parts
from ckptcheck.live.runtime.engines.base import PartSummer, Running, WeightPart
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import ShardDigest

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.tensor_part import TensorPart


class IdentityChecks:
    """The identities of one trial, which it notes in its observations.

    The identity of an engine counts only where its cold load has that of the trainer: then it stores every weight so that its parts
    are known. Elsewhere (packed, cast or padded weights) nothing is asked of it after the first step.
    """

    def __init__(self, observations: TrialObservations, source: Checkpoint | None) -> None:
        """Args: source: what the trainer loaded, None if it is not known."""
        self._observations, self._source = observations, source
        self._parts: list[WeightPart] = []

    def list_pieces(self) -> Mapping[str, Sequence[TensorPart]]:
        """Return which rectangles of the weights that join several tensors the trainer has to sum apart; {} without any."""
        try:
            return split_joined_weights(self._observations.weights, self._source).pieces
        except EvidenceError:
            return {}  # `identify_trainer` says it

    def identify_trainer(self, shards: Sequence[ShardDigest], step: int) -> None:
        """Note the identity of what the trainer's ranks hold after a step."""
        observations = self._observations
        try:
            named = identify_trainer("the trainer", shards, observations.weights, self._source)
        except EvidenceError as error:
            observations.identity_gaps["trainer"] = error.message
            return
        observations.trainer_identities[step] = named.identity
        cold = observations.engine_identities.get(0)
        if step == 0 and cold is not None and cold != named.identity:
            observations.identity_gaps["engine"] = (
                "its cold load stores weights otherwise than the trainer exports them"
            )

    def identify_engine(self, engine: Running, number: int) -> None:
        """Note the identity of what the engine holds after a sync. number: of the sync, 0 after the cold load."""
        observations = self._observations
        if observations.identity_gaps or not isinstance(engine, PartSummer):
            return
        if observations.expert_move is not None:
            observations.identity_gaps["engine"] = (
                "it moved its experts between two syncs, and its tensors do not say where to"
            )
            return
        try:
            if not number:
                held, ranks = observations.cold_manifest, engine.info.ranks
                self._parts = list_weight_parts(held, observations.weights, self._source, ranks)
            sums = engine.sum_parts(self._parts)
            named = identify_engine("the engine", self._parts, sums, observations.weights, self._source)
        except (EvidenceError, RemoteError) as error:
            observations.identity_gaps["engine"] = error.message
            return
        observations.engine_identities[number] = named.identity
