"""The versions that tokens carry, and which weights they stand for by the digests in a record of syncs (`ckptcheck.watch`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.formatting import natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts
    from ckptcheck.runs.history.record import SyncRecord


@dataclass(frozen=True)
class LabelledWeights:
    """The weights after one sync."""

    version: str
    """The weight version that the engine reported afterwards."""
    sync: int
    """Place of the sync in the record, from 0."""
    run: str
    """The process that recorded it."""
    digests: Mapping[str, str] = field(repr=False)
    """Name of a tensor → digest of what the engine holds; of what was sent, where the record does not say what it holds."""

    def count_differences(self, other: LabelledWeights) -> tuple[int, int]:
        """Return how many tensors differ, and how many both records have."""
        shared = self.digests.keys() & other.digests.keys()
        return sum(self.digests[name] != other.digests[name] for name in shared), len(shared)


def read_labelled_weights(path: Path) -> tuple[LabelledWeights, ...]:
    """Return the weights after the syncs of a record. Raises CkptcheckError where it cannot be read."""
    from ckptcheck.runs.history.record import read_record

    return list_labelled_weights(read_record(path)[0])


def list_labelled_weights(syncs: Sequence[SyncRecord]) -> tuple[LabelledWeights, ...]:
    """Return the weights after every successful sync with a version.

    What is sent adds up over the syncs of a run, since a sync may send a part of the weights.
    """
    has_held = all(sync.held for sync in syncs if sync.ok)
    sent: dict[str, dict[str, str]] = {}
    weights = []
    for place, sync in enumerate(syncs):
        if not sync.ok:
            continue
        sent[sync.run] = sent.get(sync.run, {}) | sync.sent
        digests = sync.held if has_held else sent[sync.run]
        if sync.version is not None and digests:
            weights.append(LabelledWeights(sync.version, place, sync.run, digests))
    return tuple(weights)


def find_equal_versions(
    weights: Iterable[LabelledWeights], versions: Iterable[str]
) -> list[tuple[LabelledWeights, LabelledWeights, int]]:
    """Return the pairs of given versions, of one run, whose tensors are all equal, and how many tensors these are."""
    given = set(versions)
    latest: dict[tuple[str, str], LabelledWeights] = {
        (each.run, each.version): each for each in weights if each.version in given
    }
    labelled = list(latest.values())
    found = []
    for place, one in enumerate(labelled):
        for other in labelled[place + 1 :]:
            differing, shared = one.count_differences(other)
            if one.run == other.run and shared and not differing:
                found.append((one, other, shared))
    return found


def find_ambiguous_versions(
    weights: Iterable[LabelledWeights], versions: Iterable[str]
) -> list[tuple[LabelledWeights, LabelledWeights, int, int]]:
    """Return the pairs of syncs of one run that gave other weights the same one of these versions.

    With each: how many tensors differ, and how many both have.
    """
    given = set(versions)
    first: dict[tuple[str, str], LabelledWeights] = {}
    found = []
    for each in weights:
        earlier = first.setdefault((each.run, each.version), each)
        differing, shared = each.count_differences(earlier)
        if each.version in given and differing:
            found.append((earlier, each, differing, shared))
    return found


def count_versions(rollouts: Rollouts) -> dict[str, int]:
    """Return weight version → how many responses have tokens of it, in the order of the versions.

    Raises CkptcheckError where the columns do not fit each other (``ckptcheck parity judge`` says how).
    """
    import numpy as np

    if rollouts.defects:
        raise CkptcheckError(
            "the rollouts are damaged: " + rollouts.defects[0].text,
            hint="ckptcheck parity judge lists what is wrong",
        )
    spans = rollouts.columns.get("version_spans")
    if spans is None or not len(spans):
        return {}
    sequences = np.searchsorted(rollouts.starts, np.asarray(spans)[:, 0], "right") - 1
    pairs = {
        (rollouts.metadata.versions[index], int(at)) for index, at in zip(spans[:, 2].tolist(), sequences, strict=True)
    }
    counted: dict[str, int] = {}
    for version, _ in sorted(pairs, key=lambda pair: natural_sort_key(pair[0])):
        counted[version] = counted.get(version, 0) + 1
    return counted
