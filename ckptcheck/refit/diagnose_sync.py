"""Finds why tensors of an engine differ from a cold load, with the diagnosis of `ckptcheck diff`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.refit.trace import Key, Sync
from ckptcheck.runtime.engines.base import Inspectable
from ckptcheck.text.formatting import format_bytes

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits, Verdict

MAX_TENSORS = 32
"""Number of differing tensors to fetch and diagnose."""
MAX_TENSOR_BYTES = 1 << 28
"""Size limit of one tensor: the diagnosis holds it whole, twice."""
MAX_TOTAL_BYTES = 1 << 30
"""Bytes to fetch from either side: the processes that hold them may have little memory to spare."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def diagnose_sync(engine: Inspectable, cold: Callable[[], Inspectable], sync: Sync, folder: Path) -> Sync:
    """Return the sync with the causes of what differs, or with the reason why they are unknown.

    cold: starts the engine once more from the weights that were synced. The diagnosis covers tensors of the first rank that
    differs; the rules count what differs on other ranks. A failed diagnosis does not end the trial.
    """
    small_keys = [key for key, (entry, _) in sync.differing_tensors.items() if entry.nbytes <= MAX_TENSOR_BYTES]
    if not small_keys:
        return (
            replace(sync, no_diagnosis_reason=f"every differing tensor is larger than {format_bytes(MAX_TENSOR_BYTES)}")
            if sync.differing_tensors
            else sync
        )
    rank = small_keys[0][0]
    rank_names = [name for other_rank, name in small_keys if other_rank == rank]
    names = _limit_bytes(sync, rank, rank_names[:MAX_TENSORS], 0)
    kinds = {_NUMBER.sub("{}", name) for name in names}
    siblings = [name for other_rank, name in sync.manifest if other_rank == rank and _NUMBER.sub("{}", name) in kinds]
    used_bytes = sum(sync.manifest[rank, name].nbytes for name in names)
    expected_names = names + _limit_bytes(sync, rank, [name for name in siblings if name not in set(names)], used_bytes)
    try:
        verdicts = _diagnose(engine, cold, rank, names, expected_names, folder)
    # a bug in the diagnosis, or too little memory, must not lose the finding itself
    except Exception as error:
        return replace(
            sync,
            no_diagnosis_reason=error.message
            if isinstance(error, CkptcheckError)
            else f"{type(error).__name__}: {error}",
        )
    return replace(sync, verdicts=verdicts)


def _limit_bytes(sync: Sync, rank: int, names: Sequence[str], used_bytes: int) -> list[str]:
    """Return the names whose tensors together stay within the limit."""
    totals = accumulate((sync.manifest[rank, name].nbytes for name in names), initial=used_bytes)
    return [name for name, total in zip(names, islice(totals, 1, None), strict=False) if total <= MAX_TOTAL_BYTES]


def _diagnose(
    engine: Inspectable,
    cold: Callable[[], Inspectable],
    rank: int,
    names: Sequence[str],
    expected_names: Sequence[str],
    folder: Path,
) -> tuple[Verdict, ...]:
    from ckptcheck.compare.diagnosis import DiagnosisInput, diagnose

    reference = cold()
    try:
        expected = _fetch(reference, rank, expected_names, folder / "expected.safetensors")
    finally:
        reference.close()
    actual = _fetch(engine, rank, names, folder / "actual.safetensors")
    return tuple(diagnose(DiagnosisInput(_tensor_readers(expected, rank), _tensor_readers(actual, rank)), names))


def _fetch(engine: Inspectable, rank: int, names: Sequence[str], path: Path) -> Checkpoint:
    keys: list[Key] = [(rank, name) for name in names]
    # every engine gives its file the same name
    engine.fetch_tensors(keys, path.parent).replace(path)
    return open_checkpoint(str(path))


def _tensor_readers(ckpt: Checkpoint, rank: int) -> dict[str, Callable[[], TensorBits]]:
    return {name.removeprefix(f"{rank}/"): partial(_read_bits, ckpt, name) for name in ckpt.tensors}


def _read_bits(ckpt: Checkpoint, name: str) -> TensorBits:
    import numpy as np

    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.values.dtypes import FORMATS

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
    raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[0], tensor.nbytes)
    return TensorBits(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(tensor.shape))
