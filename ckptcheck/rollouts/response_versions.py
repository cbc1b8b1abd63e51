"""Counts the responses of rollouts by the weight versions that their tokens carry."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.text.formatting import natural_sort_key


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
