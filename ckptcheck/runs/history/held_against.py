"""What a record of syncs is held against: a checkpoint that the job saved, and the weight versions of its responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SavedWeights:
    """A checkpoint of the job."""

    target: str
    identity: str


@dataclass(frozen=True)
class ResponseVersions:
    """The weight versions that responses of the job carry."""

    target: str
    # Version → how many responses have tokens of it.
    responses: Mapping[str, int]
