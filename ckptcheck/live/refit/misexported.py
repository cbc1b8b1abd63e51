"""Says what of a trainer's export is not what its ranks hold, in one sentence for all parts that are wrong for one reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckptcheck.live.refit.export_comparison import MisexportedPart
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.text.formatting import format_layers, join_truncated

LAYER = re.compile(r"\.layers\.(\d+)\.")
NUMBERED = {"layer": LAYER, "expert": re.compile(r"\.experts\.(\d+)\.")}
RANKS = re.compile(r"\b(TP|PP|EP) ranks? [\d-]+(?:,[\d-]+)*")
MOST_PAIRS = 6
AXES = ("row", "column")


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
    """Say which weights stand in the place of which others: by the number of the layer or the expert, where only that differs."""
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
