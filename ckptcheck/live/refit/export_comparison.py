"""Compares what a trainer exports with its source, what its ranks hold, and the checkpoint that it saves, and says what is wrong.

A cold load comes from the trainer's own export, so what the exporter does wrong is in the engine and in the reference. Before the
first step the source shows it; after a step only the ranks know what they hold, and they are gathered another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.base import ShardDigest, Weight
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.spawn import BUFFERS
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import format_sums
from ckptcheck.text.formatting import format_layers, join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits, Verdict

MAX_DIAGNOSED = 64
"""Tensors to explain of those that differ from the source: one cause shows in a few."""
Reason = Literal["stale", "part", "tensor", "zero", "absent", "unknown"]
"""The content of a wrong part of an export: the rank's values of an earlier step, another part of the same weight, a part of
another weight, zeros, nothing, or other values."""
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
LAYER = re.compile(r"\.layers\.(\d+)\.")
NUMBERED = {"layer": LAYER, "expert": re.compile(r"\.experts\.(\d+)\.")}
RANKS = re.compile(r"\b(TP|PP|EP) ranks? [\d-]+(?:,[\d-]+)*")
MOST_PAIRS = 6
"""Pairs of layers or experts that a message lists."""
AXES = ("row", "column")
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
    """For "part" and "tensor": the shard whose values the export has."""
    step: int | None = None
    """For "stale": the step after which the rank held these values."""


@dataclass(frozen=True)
class ExportComparison:
    """What a trainer exports after one step, beside what its ranks hold and what it saves."""

    step: int
    compared: int
    """Number of compared parts of weights."""
    wrong: tuple[MisexportedPart, ...] = ()
    saved_differently: tuple[str, ...] = ()
    """Weights whose bytes in the saved checkpoint differ from the export; the trial compares them only if it found a fault."""
    held: Mapping[Place, frozenset[str]] | None = None
    """Part → the digests of the ranks that hold it."""

    @property
    def is_sound(self) -> bool:
        """Whether the export is what the ranks hold, and what is saved is the export."""
        return not self.wrong and not self.saved_differently


@dataclass(frozen=True)
class SourceComparison:
    """The trainer's export at step 0 beside the source of the trial."""

    compared: int = 0
    """Number of compared tensors."""
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Tensors of the source that the trainer does not export, under this or another name."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Exported tensor → why it could not be compared."""
    verdicts: tuple[Verdict, ...] = ()
    """Why tensors differ."""


def compare_export(
    step: int, shards: Sequence[ShardDigest], weights: Sequence[Weight], earlier: Sequence[ExportComparison] = ()
) -> ExportComparison:
    """Compare the export of a step with what the ranks hold.

    shards: digests of what every rank holds and of the export. earlier: comparisons of earlier steps, to recognise stale values.
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
        if shard.exported == format_sums((0, 0), (shard.end - shard.begin) * rest * width):
            return MisexportedPart(shard, ranks, "zero")
    return MisexportedPart(shard, ranks, "unknown")


def find_saved_differently(weights: Sequence[Weight], sent: Mapping[str, str], saved: Path) -> tuple[str, ...]:
    """Return the weights that a checkpoint of the trainer has with other bytes than were exported. What it lacks is not compared.

    sent: name → digest of what is exported. This reads the whole checkpoint.
    """
    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.live.runtime.engines.digest import digest

    try:
        ckpt = open_checkpoint(str(saved))
    except CkptcheckError:  # a trainer that saves nothing
        return ()
    dtypes = {weight.name: weight.dtype for weight in weights}
    names = [name for name, tensor in ckpt.tensors.items() if name in sent and tensor.dtype == dtypes.get(name)]
    return tuple(name for name in names if digest(TensorBits.read(ckpt, name).patterns) != sent[name])


def compare_with_source(
    source: Checkpoint, weights: Sequence[Weight], sent: Mapping[str, str], exported: Path
) -> SourceComparison:
    """Compare digests of the exported tensors with those of the source, cast to the trainer's dtype as torch does.

    sent: name → digest of what the trainer exports. exported: the checkpoint that the trainer saved at step 0; the causes are
    looked for in it. Raises EvidenceError where the source cannot be read.
    """
    from ckptcheck.compare.matching.cast import can_cast
    from ckptcheck.live.runtime.engines.digest import digest

    differing, skipped, matched = [], {}, set()
    digests_by_name: dict[str, str] = {}
    for weight in weights:
        tensor = source.tensors.get(weight.name)
        if tensor is None:
            skipped[weight.name] = "the source has no tensor of that name"
        elif tuple(tensor.shape) != tuple(weight.shape):
            differing.append(weight.name)
            matched.add(weight.name)
        elif tensor.dtype != weight.dtype and not can_cast(tensor.dtype, weight.dtype):
            skipped[weight.name] = f"it is {tensor.dtype} in the source and {weight.dtype} in the trainer"
            matched.add(weight.name)
        else:
            matched.add(weight.name)
            digests_by_name[weight.name] = digest(_read_cast(source, weight.name, weight.dtype).patterns)
            if digests_by_name[weight.name] != sent.get(weight.name):
                differing.append(weight.name)
    # a tied head lies in the source under the name of the embedding, or twice
    known = set(digests_by_name.values())
    skipped = {name: reason for name, reason in skipped.items() if sent.get(name) not in known}
    dtypes = {weight.dtype for weight in weights}
    missing = tuple(
        name
        for name, tensor in source.tensors.items()
        if name not in matched
        and len(tensor.shape) > 1
        and not name.endswith(BUFFERS)
        and not any(
            can_cast(tensor.dtype, dtype) and digest(_read_cast(source, name, dtype).patterns) in known
            for dtype in dtypes
        )
    )
    comparison = SourceComparison(len(digests_by_name), tuple(differing), missing, skipped)
    return _explain_difference(source, weights, comparison, exported) if differing else comparison


def _explain_difference(
    source: Checkpoint, weights: Sequence[Weight], comparison: SourceComparison, exported: Path
) -> SourceComparison:
    from ckptcheck.compare.diagnosis import DiagnosisInput, TensorBits, diagnose

    written = open_checkpoint(str(exported))
    dtypes = {weight.name: weight.dtype for weight in weights}
    expected = {
        name: partial(_read_cast, source, name, dtype) for name, dtype in dtypes.items() if name in source.tensors
    }
    actual = {name: partial(TensorBits.read, written, name) for name in written.tensors}
    names = [name for name in comparison.differing if name in expected]
    return replace(comparison, verdicts=tuple(diagnose(DiagnosisInput(expected, actual), names, most=MAX_DIAGNOSED)))


def _read_cast(source: Checkpoint, name: str, dtype: str) -> TensorBits:
    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.compare.matching.cast import cast_patterns

    bits = TensorBits.read(source, name)
    return TensorBits(dtype, cast_patterns(bits.patterns, bits.dtype, dtype))


def group_misexported(parts: Iterable[MisexportedPart]) -> list[list[MisexportedPart]]:
    """Group parts that one sentence describes: of the same reason and, where it is about a part, of the same ranks."""
    groups: dict[object, list[MisexportedPart]] = {}
    for part in parts:
        is_of_ranks = part.reason in ("part", "zero", "unknown")
        origin = part.origin.rank if part.origin is not None and is_of_ranks else None
        groups.setdefault((part.reason, part.ranks if is_of_ranks else (), origin, part.step), []).append(part)
    return sorted(groups.values(), key=len, reverse=True)


def describe_misexport(parts: Sequence[MisexportedPart], layout: str) -> str:
    """Describe what the export has in place of what ranks hold. parts: of one group. layout: of the trainer (``TP2·PP2``)."""
    names = sorted({part.shard.name for part in parts})
    first = next(part for part in parts if part.shard.name == names[0])
    ranks = _describe_ranks({rank for part in parts for rank in part.ranks}, layout)
    spans = {(part.shard.axis, part.shard.begin, part.shard.end) for part in parts if part.shard.name == names[0]}
    verb = "hold" if re.search(r"\branks\b", ranks) else "holds"
    if len(names) > 1:
        holder = f", of {ranks}" if ranks else ""
    else:
        holder = f", which {ranks} {verb} as {first.shard.own}" if ranks else ""
    place = f"{join_truncated(names)}{_describe_layers(names)}"
    if len(spans) == 1 and ranks and first.reason in ("part", "zero", "unknown", "absent"):
        place += f", {_describe_span(*next(iter(spans)))}" + (" of the first" if len(names) > 1 else "")
    return f"{place}{holder}: {_describe_content(parts, first, ranks, layout)}"


def _describe_content(parts: Sequence[MisexportedPart], first: MisexportedPart, ranks: str, layout: str) -> str:
    """Say what the export has there."""
    if first.reason == "tensor":
        return _describe_moves(parts, layout)
    if first.reason == "stale":
        version = f"step {first.step}" if first.step else "the start"
        return f"the export still has the values of {version}, so it reads a copy"
    if first.reason == "part" and first.origin is not None:
        other = _describe_ranks({first.origin.rank}, layout)
        source = _describe_span(first.origin.axis, first.origin.begin, first.origin.end)
        return f"the export has {source} there" + (f", which {other} holds" if other != ranks else "")
    if first.reason == "zero":
        return "the export has zeros there"
    if first.reason == "absent":
        return "the export does not have it"
    return "the export has other values, which no rank holds or held before"


def _describe_moves(parts: Sequence[MisexportedPart], layout: str) -> str:
    """List the weights that the export swaps, as ``layer 1 is layer 2`` if only the number of the layer or expert differs."""
    moves = [(part.shard.name, part.origin.name) for part in parts if part.origin is not None]
    for noun, pattern in NUMBERED.items():
        if all(pattern.sub("*", to) == pattern.sub("*", source) for to, source in moves):
            numbers = {int(to_found[1]): int(source_found[1]) for to, source in moves
                       if (to_found := pattern.search(to)) and (source_found := pattern.search(source))}  # fmt: skip
            pairs = [f"{noun} {to} is {noun} {source}" for to, source in sorted(numbers.items())]
            break
    else:
        pairs = list(dict.fromkeys(f"{to} is {source}" for to, source in moves))
    listed = ", ".join(pairs[:MOST_PAIRS]) + (f" and {len(pairs) - MOST_PAIRS} more" if len(pairs) > MOST_PAIRS else "")
    holders = _describe_ranks({part.origin.rank for part in parts if part.origin is not None}, layout)
    return f"in the export, {listed}" + (f" (which {holders} holds)" if holders and len(pairs) == 1 else "")


def _describe_span(axis: int, begin: int, end: int) -> str:
    return f"{AXES[axis]}s {begin:,} to {end - 1:,}" if end - begin > 1 else f"{AXES[axis]} {begin:,}"


def _describe_layers(names: Sequence[str]) -> str:
    layers = {int(match[1]) for name in names if (match := LAYER.search(name))}
    return f" ({format_layers(layers)})" if len(names) > 3 and layers else ""


def _describe_ranks(ranks: set[int], layout: str) -> str:
    """Name global ranks by their place in the layout, ``TP rank 1 of 2, PP rank 0 of 2``; "" for a trainer of one rank."""
    parallel = ParallelLayout.parse(layout)
    if parallel.world_size == 1:
        return ""
    sizes = {"TP": parallel.tp, "PP": parallel.pp, "EP": parallel.ep}
    return RANKS.sub(lambda match: f"{match[0]} of {sizes[match[1]]}", parallel.describe_ranks(ranks))
