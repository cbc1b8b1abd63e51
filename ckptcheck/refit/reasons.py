"""Why tensors of an engine are not what a cold load gives: the diagnosis of the diff, over what the engine holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.engines.base import Engine
from ckptcheck.refit.trace import Key, Sync

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.diagnosis import Bits, Verdict

MOST = 32
"""Differing tensors that are fetched and looked at."""
LARGEST = 1 << 28
"""Bytes of a tensor from which no cause is looked for: it would have to be held whole, twice."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def reasons(engine: Engine, cold: Callable[[], Engine], sync: Sync, folder: Path) -> tuple[Verdict, ...]:
    """Name the causes; () where nothing differs. cold: starts the engine from the weights that were synced, once more.

    Only tensors of the first rank that differs are looked at; what differs elsewhere, the rules count.
    """
    small = [key for key, (entry, _) in sync.differing.items() if entry.nbytes <= LARGEST]
    if not small:
        return ()
    from ckptcheck.diagnosis import Sides, diagnose

    rank = small[0][0]
    names = [name for place, name in small if place == rank][:MOST]
    kinds = {_NUMBER.sub("{}", name) for name in names}
    alike = [name for place, name in sync.manifest if place == rank and _NUMBER.sub("{}", name) in kinds]
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
