"""Finds why tensors of an engine differ from a cold load, with the diagnosis of `ckptcheck diff`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.observations import Key, RankDiagnosis, Sync, is_draft
from ckptcheck.live.refit.weight_names import Read, TensorPart, list_parts
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.text.formatting import format_bytes

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits, Verdict
    from ckptcheck.live.runtime.trainers.base import Weight

MAX_TENSORS = 32
"""Differing tensors of one rank to fetch and diagnose: one cause shows in a few, and each costs a read of the checkpoint."""
MAX_TENSORS_OF_ALL = 4 * MAX_TENSORS
"""Differing tensors of all ranks together."""
MAX_TENSOR_BYTES = 1 << 28
"""Size limit of one tensor: the diagnosis holds it whole, twice."""
MAX_TOTAL_BYTES = 1 << 30
"""Bytes to fetch from either side: the processes that hold them may have little memory to spare."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def diagnose_sync(
    engine: Engine, cold: Callable[[], Engine], sync: Sync, folder: Path, weights: Sequence[Weight] = ()
) -> Sync:
    """Return the sync with the causes of what differs, or with the reason why they are unknown.

    cold: starts the engine once more from the weights that were synced. folder: with the checkpoint of each step. weights: what
    the trainer exports. Every rank on which something differs is diagnosed by itself: ranks may have different faults. A failed
    diagnosis does not end the trial.
    """
    differing = {key: entry for key, (entry, _) in sync.differing_tensors.items() if not is_draft(key[1])}
    small_keys = [key for key, entry in differing.items() if entry.nbytes <= MAX_TENSOR_BYTES]
    if not small_keys:
        return (
            replace(sync, no_diagnosis_reason=f"every differing tensor is larger than {format_bytes(MAX_TENSOR_BYTES)}")
            if differing
            else sync
        )
    names_by_rank: dict[int, list[str]] = {}
    for rank, name in small_keys:
        names_by_rank.setdefault(rank, []).append(name)
    most = min(MAX_TENSORS, max(1, MAX_TENSORS_OF_ALL // len(names_by_rank)))
    try:
        reference = cold()
        try:
            diagnoses = tuple(
                _diagnose_rank(engine, reference, sync, rank, _spread(names, most), folder, weights)
                for rank, names in sorted(names_by_rank.items())
            )
        finally:
            reference.close()
    # a bug in the diagnosis, or too little memory, must not lose the finding itself
    except Exception as error:
        return replace(
            sync,
            no_diagnosis_reason=error.message
            if isinstance(error, CkptcheckError)
            else f"{type(error).__name__}: {error}",
        )
    return replace(sync, diagnoses=diagnoses)


def _diagnose_rank(
    engine: Engine,
    reference: Engine,
    sync: Sync,
    rank: int,
    rank_names: Sequence[str],
    folder: Path,
    weights: Sequence[Weight],
) -> RankDiagnosis:
    """Diagnose these tensors of one rank. reference: the engine, started cold from the weights that were synced."""
    names = _limit_bytes(sync, rank, rank_names, 0)
    kinds = {_NUMBER.sub("{}", name) for name in names}
    siblings = [name for other_rank, name in sync.manifest if other_rank == rank and _NUMBER.sub("{}", name) in kinds]
    used_bytes = sum(sync.manifest[rank, name].nbytes for name in names)
    expected_names = names + _limit_bytes(sync, rank, [name for name in siblings if name not in set(names)], used_bytes)
    ranks = 1 + max(other_rank for other_rank, _ in sync.manifest)
    expected = _fetch(reference, rank, expected_names, folder / "expected.safetensors")
    actual = _fetch(engine, rank, names, folder / "actual.safetensors")
    sides = _Sides(rank, ranks, expected, actual, {weight.name: weight for weight in weights})
    verdicts, engine_names = sides.diagnose(names, *_find_step_folders(folder, sync.step))
    return RankDiagnosis(rank, tuple(verdicts), engine_names)


def _spread(names: Sequence[str], most: int) -> list[str]:
    """Return at most so many names, as many kinds of tensors as possible among them: another kind may have another fault."""
    by_kind: dict[str, list[str]] = {}
    for name in names:
        by_kind.setdefault(_NUMBER.sub("{}", name), []).append(name)
    rounds = zip_longest(*by_kind.values())
    chosen = set(islice((name for each in rounds for name in each if name is not None), most))
    return [name for name in names if name in chosen]


def _limit_bytes(sync: Sync, rank: int, names: Sequence[str], used_bytes: int) -> list[str]:
    """Return the names whose tensors together stay within the limit."""
    totals = accumulate((sync.manifest[rank, name].nbytes for name in names), initial=used_bytes)
    return [name for name, total in zip(names, islice(totals, 1, None), strict=False) if total <= MAX_TOTAL_BYTES]


@dataclass(frozen=True)
class _Sides:
    """What one rank should hold and what it holds, as tensors of the checkpoint."""

    rank: int
    ranks: int
    expected: Checkpoint
    actual: Checkpoint
    weights: Mapping[str, Weight]

    def diagnose(
        self, names: Sequence[str], now: Path | None, earlier: Sequence[Path]
    ) -> tuple[list[Verdict], dict[str, str]]:
        """Explain the difference of these engine tensors; also return in which of them each tensor of the verdicts lies.

        now, earlier: the checkpoints of this step and of those before it, the last one first.
        """
        from ckptcheck.compare.diagnosis import DiagnosisInput, diagnose

        expected, actual = self._split(self.expected), self._split(self.actual)
        engine_names = {name: part.engine_name for name, (part, _) in actual.items()}
        sides = DiagnosisInput(_readers(expected), _readers(actual))
        differing = [name for name in actual if name in expected and engine_names[name] in set(names)]
        verdicts: list[Verdict] = []
        # the step before, then the first one: a copy from the start
        for path in dict.fromkeys([*earlier[:1], *earlier[-1:]]) or [None]:
            previous = self._read_previous(expected, now, path)
            found = diagnose(replace(sides, previous=previous), differing)
            known = [verdict for verdict in found if "unknown" not in verdict.causes]
            verdicts += [_name_step(verdict, path) for verdict in known]
            differing = [name for verdict in found if verdict not in known for name in verdict.tensors]
            differing = [name for name in differing if name in actual]
            rest = [verdict for verdict in found if verdict not in known]
            if not differing:
                break
        return [*verdicts, *rest], engine_names

    def _split(self, ckpt: Checkpoint) -> dict[str, tuple[TensorPart, Read]]:
        """Return the parts of the tensors of a file: the checkpoint's name → where it lies, and what reads it."""
        from ckptcheck.compare.diagnosis import TensorBits

        found: dict[str, tuple[TensorPart, Read]] = {}
        for key, tensor in ckpt.tensors.items():
            name = key.removeprefix(f"{self.rank}/")
            whole = cache(partial(TensorBits.read, ckpt, key))
            for source, part in list_parts(name, tuple(tensor.shape), self.ranks, self.weights):
                # two tensors of the engine may be built from one: a tied head
                own = source if source not in found else name
                found[own] = (part, partial(_extract, part, whole))
        return found

    def _read_previous(
        self, expected: Mapping[str, tuple[TensorPart, Read]], now: Path | None, earlier: Path | None
    ) -> dict[str, Read]:
        from ckptcheck.compare.diagnosis import TensorBits

        if now is None or earlier is None:
            return {}
        try:
            after, before = open_checkpoint(str(now)), open_checkpoint(str(earlier))
        except CkptcheckError:  # without the step before there are fewer causes to try
            return {}
        found: dict[str, Read] = {}
        for name, (_, read) in expected.items():
            bits = _read_earlier(name, read(), after, before)
            if bits is not None:
                found[name] = partial(TensorBits, bits.dtype, bits.patterns)
        return found


def _readers(parts: Mapping[str, tuple[TensorPart, Read]]) -> dict[str, Read]:
    return {name: read for name, (_, read) in parts.items()}


def _extract(part: TensorPart, whole: Read) -> TensorBits:
    return part.extract(whole())


def _name_step(verdict: Verdict, checkpoint: Path | None) -> Verdict:
    """Say which version the previous one is."""
    if checkpoint is None:
        return verdict
    version = f"the version of {checkpoint.name.replace('step', 'step ')}"
    return structs.replace(verdict, sentence=verdict.sentence.replace("the previous version", version))


def _fetch(engine: Engine, rank: int, names: Sequence[str], path: Path) -> Checkpoint:
    keys: list[Key] = [(rank, name) for name in names]
    # every engine gives its file the same name
    engine.fetch_tensors(keys, path.parent).replace(path)
    return open_checkpoint(str(path))


def _read_earlier(name: str, expected: TensorBits, now: Checkpoint, earlier: Checkpoint) -> TensorBits | None:
    """Return what a part would be with the weights of an earlier step; None if no shard of the tensor is equal to it.

    name: the checkpoint's tensor. expected: the part as it has to be. now, earlier: the checkpoints of the two steps. The shard
    that the rank holds is found by its values: all, some rows, or some columns.
    """
    import numpy as np

    from ckptcheck.compare.diagnosis import TensorBits

    if name not in now.tensors or name not in earlier.tensors:
        return None
    whole, before = TensorBits.read(now, name), TensorBits.read(earlier, name)
    if whole.dtype != expected.dtype or before.shape != whole.shape:
        return None
    for part in _iter_shards(whole.shape, expected.shape):
        if np.array_equal(whole.patterns[part], expected.patterns):
            return TensorBits(before.dtype, np.ascontiguousarray(before.patterns[part]))
    return None


def _iter_shards(whole: tuple[int, ...], shard: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield where a shard can lie: everywhere, or in a range of one axis."""
    if whole == shard:
        yield ()
        return
    if len(whole) != len(shard):
        return
    axes = [axis for axis in range(len(whole)) if whole[axis] != shard[axis]]
    if len(axes) != 1 or not shard[axes[0]] or whole[axes[0]] % shard[axes[0]]:
        return
    axis, size = axes[0], shard[axes[0]]
    for begin in range(0, whole[axis], size):
        yield (*(slice(None),) * axis, slice(begin, begin + size))


def _find_step_folders(folder: Path, step: int) -> tuple[Path | None, list[Path]]:
    """Return the checkpoint of a step of the trial, and those of the steps before it, the last one first."""
    now = folder / f"step{step}"
    earlier = [folder / f"step{number}" for number in range(step - 1, -1, -1)]
    return (now if now.is_dir() else None), [path for path in earlier if path.is_dir()]
