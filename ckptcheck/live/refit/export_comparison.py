"""Compares what a trainer exports with what its ranks hold, gathered another way, and with the checkpoint that it saves.

A cold load comes from the trainer's own export, so what the exporter does wrong is in the engine and in the reference. At step 0
the source shows it (source_comparison.py); after a step only the ranks know what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.tensor_bits import read_bits
from ckptcheck.live.runtime.trainers.base import ShardDigest, Weight
from ckptcheck.live.runtime.worker.ckptcheck_worker.digest import format_digest

Reason = Literal["stale", "part", "tensor", "zero", "absent", "unknown"]
"""What an export has in place of what a rank holds: what the rank held at an earlier step, another part of the same weight, a part
of another weight, zeros, nothing, or something else."""
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
Place = tuple[str, int, int, int]
"""Weight, axis, begin, end."""


@dataclass(frozen=True)
class MisexportedPart:
    """A part of an exported weight that differs from what the ranks hold."""

    shard: ShardDigest
    ranks: tuple[int, ...]
    """All ranks that hold this part."""
    reason: Reason
    origin: ShardDigest | None = None
    """Who holds what the export has here: of the reasons "part" and "tensor"."""
    step: int | None = None
    """The step after which the rank held what the export has: of the reason "stale"."""


@dataclass(frozen=True)
class ExportComparison:
    """What a trainer exports after one step, beside what its ranks hold and what it saves."""

    step: int
    compared: int
    """Parts of weights of which the digests were compared."""
    wrong: tuple[MisexportedPart, ...] = ()
    saved_otherwise: tuple[str, ...] = ()
    """Weights of which the saved checkpoint has other bytes than the export; looked for only where the trial found a fault."""
    held: Mapping[Place, frozenset[str]] | None = None
    """Part → the digests that its holders have."""

    @property
    def is_sound(self) -> bool:
        """Whether the export is what the ranks hold, and what is saved is the export."""
        return not self.wrong and not self.saved_otherwise


def compare_export(
    step: int, shards: Sequence[ShardDigest], weights: Sequence[Weight], earlier: Sequence[ExportComparison] = ()
) -> ExportComparison:
    """Compare the export of a step with what the ranks hold.

    shards: what every rank holds, beside the export. earlier: the comparisons of the steps before, which tell what is stale.
    """
    holders: dict[Place, list[ShardDigest]] = {}
    by_digest: dict[str, list[ShardDigest]] = {}
    for shard in shards:
        holders.setdefault((shard.name, shard.axis, shard.begin, shard.end), []).append(shard)
        by_digest.setdefault(shard.held, []).append(shard)
    held = {place: frozenset(shard.held for shard in others) for place, others in holders.items()}
    sizes = {weight.name: (weight.shape, BYTES.get(weight.dtype, 0)) for weight in weights}
    wrong = tuple(
        _explain(place, others, by_digest, sizes, earlier)
        for place, others in holders.items()
        # where only some holders agree, their copies differ: that is no fault of the export
        if others[0].exported not in held[place]
    )
    return ExportComparison(step, len(shards), wrong, held=held)


def _explain(
    place: Place,
    holders: Sequence[ShardDigest],
    by_digest: Mapping[str, Sequence[ShardDigest]],
    sizes: Mapping[str, tuple[tuple[int, ...], int]],
    earlier: Sequence[ExportComparison],
) -> MisexportedPart:
    shard, ranks = holders[0], tuple(sorted({other.rank for other in holders}))
    if not shard.exported:
        return MisexportedPart(shard, ranks, "absent")
    for comparison in reversed(earlier):
        if shard.exported in (comparison.held or {}).get(place, ()):
            return MisexportedPart(shard, ranks, "stale", step=comparison.step)
    sources = by_digest.get(shard.exported, ())
    if siblings := [source for source in sources if source.name == shard.name]:
        return MisexportedPart(shard, ranks, "part", siblings[0])
    if sources:
        kind = _NUMBER.sub("{}", shard.name)
        alike = [source for source in sources if _NUMBER.sub("{}", source.name) == kind]
        return MisexportedPart(shard, ranks, "tensor", (alike or [*sources])[0])
    shape, width = sizes.get(shard.name, ((), 0))
    if shape and width:
        rest = prod(shape) // max(1, shape[min(shard.axis, len(shape) - 1)])
        if shard.exported == format_digest((0, 0), (shard.end - shard.begin) * rest * width):
            return MisexportedPart(shard, ranks, "zero")
    return MisexportedPart(shard, ranks, "unknown")


def find_saved_otherwise(weights: Sequence[Weight], sent: Mapping[str, str], saved: Path) -> tuple[str, ...]:
    """Return the weights that a checkpoint of the trainer has with other bytes than were exported. What it lacks is not compared.

    sent: name → digest of what is exported. This reads the whole checkpoint.
    """
    from ckptcheck.live.runtime.engines.digest import digest

    try:
        ckpt = open_checkpoint(str(saved))
    except CkptcheckError:  # a trainer that saves nothing
        return ()
    dtypes = {weight.name: weight.dtype for weight in weights}
    names = [name for name, tensor in ckpt.tensors.items() if name in sent and tensor.dtype == dtypes.get(name)]
    return tuple(name for name in names if digest(read_bits(ckpt, name).patterns) != sent[name])
