"""Reads activation dumps of other tools as points, and compares every rank.

readers.py    the folder of msProbe's PrecisionDebugger, as the verl guide to consistency dumps makes it, and SGLang's two kinds
distributed.py  DTensors: the part of each rank, and sums that several ranks share
rank.py       what a rank wrote, and the ranks that compute one batch together
names.py      module names of transformers, vLLM, SGLang and Megatron → points
shards.py     pipeline stages and tensor-parallel ranks
alignment.py  which tokens of one side are which of the other: data and context parallelism, order, padding
pairing.py    the points of two replicas, row by row, and their position ids
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.localize.dumps.alignment import Alignment, align_replicas
from ckptcheck.live.localize.dumps.distributed import resolve_distributed
from ckptcheck.live.localize.dumps.names import AttentionShape, holds_fused_projection, read_points
from ckptcheck.live.localize.dumps.pairing import describe_positions, find_unequal_copy, pair_points
from ckptcheck.live.localize.dumps.rank import RankDump, Replica
from ckptcheck.live.localize.dumps.readers import read_msprobe, read_sglang
from ckptcheck.live.localize.dumps.shards import join_ranks
from ckptcheck.live.localize.localization import Localization, RankLayout, UnequalCopy
from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.text.formatting import count


def compare_dumps(here: Path, there: Path, source: Path | None, dtype: str, limit: float | None) -> Localization:
    """Compare two dumps. source: a checkpoint whose config says how to split fused projections; None: they are not compared.

    Raises CkptcheckError where a folder holds no known dump.
    """
    shape, experts_per_token = AttentionShape(), 0
    if source is not None:
        from ckptcheck.checkpoint.open import open_checkpoint
        from ckptcheck.compare.bridge.model_dimensions import ModelDimensions

        config = open_checkpoint(str(source)).config
        shape = AttentionShape.of(ModelDimensions.from_config(config))
        experts_per_token = (config.integer("num_experts_per_tok") if config else None) or 0
    return compare_ranks(
        (_read_ranks(here), _read_ranks(there)), _name_sides(here, there), f"{here} ↔ {there}", shape=shape, dtype=dtype,
        experts_per_token=experts_per_token, limit=limit,
    )  # fmt: skip


def compare_ranks(
    dumps: tuple[Sequence[RankDump], Sequence[RankDump]],
    names: tuple[str, str],
    target: str,
    *,
    shape: AttentionShape,
    dtype: str = "float32",
    experts_per_token: int = 0,
    limit: float | None = None,
) -> Localization:
    """Bring the ranks and tokens of two dumps together, and compare each replica of one side with its tokens on the other.

    Args:
        dumps: the dumps of the ranks of both sides.
        names: the names of the two sides in the report.
        target: the name of the comparison in the report.
        shape: how to split fused projections.
        dtype: what both sides compute in.
        experts_per_token: 0 for a dense model.
        limit: relative difference that still counts as equal; None: that of the dtype.
    """
    not_compared: list[str] = []
    sides = []
    for side, name in zip(dumps, names, strict=True):
        replicas, reasons = join_ranks([piece for dump in side for piece in read_points(dump, shape)])
        sides.append(replicas)
        not_compared += [f"{reason} ({name})" for reason in reasons]
        not_compared += [f"{clause} ({name})" for dump in side for clause in dump.left_out]
        not_compared += [
            f"{count(dump.later_calls, 'later call')} of the modules on {dump.name} of {name} (further micro batches or tokens)"
            for dump in side
            if dump.later_calls
        ]
    # where one side alone fuses them, the other's are reported as points without a partner
    is_fused = not shape.is_known and all(any(map(holds_fused_projection, side)) for side in dumps)
    if is_fused:
        not_compared.append("q, k and v, which are one projection")
    reference, other = sides
    alignment = align_replicas(reference, other, names)
    not_compared += _list_unmatched(alignment, sides, names)
    parts: list[tuple[str, tuple[Activations, Activations]]] = []
    copies: list[UnequalCopy | None] = []
    for match in alignment.matches:
        ours, theirs = reference[match.reference], other[match.other]
        points: tuple[Activations, Activations] = pair_points(ours, theirs, match)
        parts.append((f"{ours.name} ↔ {theirs.name}" if len(reference) > 1 or len(other) > 1 else "", points))
        copies.append(find_unequal_copy(ours, points[1], match, (0, names[0]), dtype))
        copies.append(find_unequal_copy(theirs, points[0], match, (1, names[1]), dtype))
    layout = RankLayout(
        _drop_repeated(copies), tuple(not_compared), is_fused, tuple(alignment.moves), alignment.different,
        describe_positions(reference, other, alignment.matches, names),
    )  # fmt: skip
    label, points = parts[0] if parts else ("", ({}, {}))
    further = tuple(
        Localization(target, names, *rest, dtype, experts_per_token, limit, ranks=ranks) for ranks, rest in parts[1:]
    )
    return Localization(
        target, names, *points, dtype, experts_per_token, limit, ranks=label, further=further, layout=layout
    )


def _drop_repeated(copies: list[UnequalCopy | None]) -> tuple[UnequalCopy, ...]:
    """Return the first finding of each rank: a replica that is compared with several is examined several times."""
    by_rank: dict[tuple[str, str], UnequalCopy] = {}
    for copy in copies:
        if copy is not None:
            by_rank.setdefault((copy.side, copy.rank), copy)
    return tuple(by_rank.values())


def _list_unmatched(alignment: Alignment, sides: list[list[Replica]], names: tuple[str, str]) -> list[str]:
    """Return a clause for each replica without a partner on the other side."""
    found: tuple[set[int], set[int]] = set(), set()
    for match in alignment.matches:
        found[0].add(match.reference)
        found[1].add(match.other)
    return [
        f"{replica.name} of {name}, whose tokens {names[1 - side]} has not"
        for side, (replicas, name) in enumerate(zip(sides, names, strict=True))
        for index, replica in enumerate(replicas)
        if index not in found[side]
    ]


def _name_sides(here: Path, there: Path) -> tuple[str, str]:
    """Return two different names of the sides: the folders' names, or their paths where the names are equal."""
    for first, second in ((here.name, there.name), (str(here), str(there))):
        if first != second:
            return first, second
    return str(here), f"{there} again"


def _read_ranks(folder: Path) -> list[RankDump]:
    """Return the dump of each rank. Raises CkptcheckError if the folder holds no known dump."""
    if not folder.is_dir():
        raise CkptcheckError(f"{folder} is no folder")
    if ranks := read_msprobe(folder) or read_sglang(folder):
        return resolve_distributed(ranks)
    raise CkptcheckError(
        f"{folder} holds no dump that is known",
        hint="there should be dump.json of msProbe (task tensor, level L0), or *.pt of SGLang's dumper",
    )
