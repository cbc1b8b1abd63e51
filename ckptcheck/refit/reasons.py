"""Why tensors of an engine are not what a cold load gives: the diagnosis of the diff, over what the engine holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.engines.base import Engine
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import size
from ckptcheck.refit.trace import Key, Sync

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.diagnosis import Bits, Verdict

MOST = 32
"""Differing tensors that are fetched and looked at."""
LARGEST = 1 << 28
"""Bytes of a tensor from which no cause is looked for: it would have to be held whole, twice."""
WHOLE = 1 << 30
"""Bytes that are fetched from either side: the processes that hold them may have little room for more."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def explained(engine: Engine, cold: Callable[[], Engine], sync: Sync, folder: Path) -> Sync:
    """Return the sync with the causes of what differs, or why they are not known: the trial goes on without them.

    cold: starts the engine from the weights that were synced, once more. Only tensors of the first rank that differs are
    looked at; what differs elsewhere, the rules count.
    """
    small = [key for key, (entry, _) in sync.differing.items() if entry.nbytes <= LARGEST]
    if not small:
        return replace(sync, unexplained=f"what differs is larger than {size(LARGEST)}") if sync.differing else sync
    rank = small[0][0]
    here = [name for place, name in small if place == rank]
    names = _within(sync, rank, here[:MOST], 0)
    kinds = {_NUMBER.sub("{}", name) for name in names}
    siblings = [name for place, name in sync.manifest if place == rank and _NUMBER.sub("{}", name) in kinds]
    used = sum(sync.manifest[rank, name].nbytes for name in names)
    alike = names + _within(sync, rank, [name for name in siblings if name not in set(names)], used)
    try:
        verdicts = _verdicts(engine, cold, rank, names, alike, folder)
    except Exception as error:  # whatever is wrong with the diagnosis, or short of room, what was found is what counts
        return replace(
            sync, unexplained=error.message if isinstance(error, CkptcheckError) else f"{type(error).__name__}: {error}"
        )
    return replace(sync, verdicts=verdicts)


def _within(sync: Sync, rank: int, names: Sequence[str], used: int) -> list[str]:
    """Return the names up to the first that would be too much."""
    sums = accumulate((sync.manifest[rank, name].nbytes for name in names), initial=used)
    return [name for name, total in zip(names, islice(sums, 1, None), strict=False) if total <= WHOLE]


def _verdicts(
    engine: Engine, cold: Callable[[], Engine], rank: int, names: Sequence[str], alike: Sequence[str], folder: Path
) -> tuple[Verdict, ...]:
    from ckptcheck.diagnosis import Sides, diagnose

    reference = cold()
    try:
        expected = _fetched(reference, rank, alike, folder / "expected.safetensors")
    finally:
        reference.close()
    actual = _fetched(engine, rank, names, folder / "actual.safetensors")
    return tuple(diagnose(Sides(_readers(expected, rank), _readers(actual, rank)), names))


def _fetched(engine: Engine, rank: int, names: Sequence[str], path: Path) -> Checkpoint:
    keys: list[Key] = [(rank, name) for name in names]
    engine.fetch(keys, path.parent).replace(path)  # every engine gives its file the same name
    return open_checkpoint(str(path))


def _readers(ckpt: Checkpoint, rank: int) -> dict[str, Callable[[], Bits]]:
    return {name.removeprefix(f"{rank}/"): partial(_bits, ckpt, name) for name in ckpt.tensors}


def _bits(ckpt: Checkpoint, name: str) -> Bits:
    import numpy as np

    from ckptcheck.diagnosis import Bits
    from ckptcheck.values.dtypes import FORMATS

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]
    raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[0], tensor.nbytes)
    return Bits(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(tensor.shape))
