"""Why tensors differ, as far as the bank of hypotheses knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from ckptcheck.bridge.area import Area, LayoutError
from ckptcheck.bridge.table import parts
from ckptcheck.comparison import slabs
from ckptcheck.comparison.cast import can_cast, cast
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.diagnosis import Bits, Geometry, Sides, Verdict

MOST = 256
"""Tensors that are looked at, spread over kinds and layers."""
LARGEST = 1 << 27
"""Bytes of a tensor from which it is not held in memory whole, but looked at in slabs."""


def reasons(comparison: Comparison) -> list[Verdict]:
    """Return verdicts over the tensors that differ. Raises EvidenceError where a file cannot be read any more."""
    from ckptcheck.diagnosis import diagnose

    large: dict[str, Area] = {}
    stacked: list[list[Piece]] = []
    small: list[str] = []
    for pair, _, _ in comparison.findings.different:
        pieces = _pieces(comparison, pair)
        if len(pieces) > 1:
            stacked.append(pieces)
        elif pieces[0].first.nbytes > LARGEST:
            large[pieces[0].name] = pieces[0].first
        else:
            small.append(pieces[0].name)
    own = {piece.name: pair.name for pair, _ in comparison.plain for piece in _pieces(comparison, pair)}
    with Files(comparison.first.source) as ours, Files(comparison.second.source) as theirs, ExitStack() as stack:
        before = _before(comparison, stack)
        try:
            found = slabs.verdicts(large, partial(_sides, comparison, (ours, theirs), before))
            known = {name for verdict in found for name in verdict.tensors if "unknown" not in verdict.causes}
            rest = [name for name in small if name not in known] + _different(stacked, ours, theirs)
            if rest:
                found += diagnose(_sides(comparison, (ours, theirs), before, None), rest, most=MOST)
        except Unreadable as error:
            raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
    return [
        replace(verdict, tensors=tuple(dict.fromkeys(_stored(own, name) for name in verdict.tensors)))
        for verdict in found
    ]


class Piece(NamedTuple):
    """A tensor as causes are looked for: whole, or one expert of those that it stacks."""

    name: str
    first: Area
    second: Area


def _whole(pair: Pair) -> Piece:
    assert isinstance(pair.first, Area)
    assert isinstance(pair.second, Area)
    return Piece(_usual(pair.name), pair.first, pair.second)


def _pieces(comparison: Comparison, pair: Pair) -> list[Piece]:
    """Take a tensor apart that stacks experts and is too large to be held: as its family's table does, else expert by expert."""
    whole = _whole(pair)
    name, *sides = whole
    if whole.first.nbytes <= LARGEST or len(whole.first.shape) != 3 or "expert" not in name:
        return [whole]
    table = comparison.first.table or comparison.second.table
    entries = table.variants if table is not None else {}
    stem, _, leaf = name.rpartition(".")
    try:
        ours, theirs = (
            parts(entries, pair.name, side, comparison.geometry)
            or {f"{stem}.{number}.{leaf}": area for number, area in enumerate(side.unstacked())}
            for side in sides
        )
    except LayoutError:
        return [whole]
    return [Piece(_usual(part), area, theirs[part]) for part, area in ours.items()]


def _different(stacked: list[list[Piece]], ours: Files, theirs: Files) -> list[str]:
    """Return the experts that differ, as many as are looked at, those of all tensors in turn. Raises Unreadable."""
    found: list[str] = []
    for turn in zip_longest(*stacked):
        for piece in turn:
            if piece is not None and piece.first.nbytes <= LARGEST and len(found) < MOST:
                raw = ours.whole(piece.first), theirs.whole(piece.second)
                if raw[0].dtype != raw[1].dtype or (raw[0] != raw[1]).any():
                    found.append(piece.name)
    return found


Earlier = tuple[Files, Mapping[str, Area]]


def _before(comparison: Comparison, stack: ExitStack) -> Earlier | None:
    """Return the files of the version before, and what of it belongs to each name."""
    if comparison.previous is None:
        return None
    own = replace(comparison, second=comparison.previous, previous=None, bridge="builtin", progress=None)
    areas: dict[str, Area] = {}
    for pair, how in own.plain:
        if how.target in (how.second, how.first):
            areas |= {name: area for name, _, area in (_whole(pair), *_pieces(own, pair))}
    return stack.enter_context(Files(comparison.previous.source)), areas


def reshaped(comparison: Comparison) -> dict[str, str]:
    """Return name → how a tensor of another shape is related to its counterpart, of those for which that is known.

    Raises EvidenceError where a file cannot be read.
    """
    from ckptcheck.diagnosis.shapes import shape_cause

    found = {}
    geometry = _heads(comparison)
    with Files(comparison.first.source) as ours, Files(comparison.second.source) as theirs:
        for pair in comparison.accounts.shapes[:MOST]:
            one, other = pair.first, pair.second
            if not (isinstance(one, Area) and isinstance(other, Area)) or max(one.nbytes, other.nbytes) > LARGEST:
                continue
            if one.dtype != other.dtype and not can_cast(one.dtype, other.dtype):
                continue
            try:
                bits = _bits(ours, one, other.dtype, None), _bits(theirs, other, other.dtype, None)
            except Unreadable as error:
                raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
            if text := shape_cause(*bits, _usual(pair.name), geometry):
                found[pair.name] = text
    return found


def _stored(own: Mapping[str, str], name: str) -> str:
    """Return the name of the tensor of which a verdict speaks; of one that stacks experts it names a slice: ``NAME[3]``."""
    return own[name] if name in own else own[name.rpartition("[")[0]]


def _sides(
    comparison: Comparison,
    files: tuple[Files, Files],
    before: Earlier | None,
    cut: slabs.Cut | None,
    only: Iterable[str] | None = None,
) -> Sides:
    """Return the readers of both sides: of whole tensors without the large ones, or of one slab of each that has columns.

    only: names beyond which nothing is looked at.
    """
    from ckptcheck.diagnosis import Sides

    expected: dict[str, Callable[[], Bits]] = {}
    actual: dict[str, Callable[[], Bits]] = {}
    previous: dict[str, Callable[[], Bits]] = {}
    called: dict[str, str] = {}
    wanted = None if only is None else set(only)
    for pair, how in comparison.plain:
        for name, first, second in _pieces(comparison, pair) if cut is None else [_whole(pair)]:
            if (first.nbytes > LARGEST and cut is None) or (wanted is not None and name not in wanted):
                continue
            part = cut if len(first.shape) > 1 else None
            expected[name] = partial(_bits, files[0], first, how.target, part)
            actual[name] = partial(_bits, files[1], second, how.target, part)
            if before is not None and name in before[1] and before[1][name].shape == first.shape:
                previous[name] = partial(_bits, before[0], before[1][name], how.target, part)
            called |= _called(comparison, pair, name)
    targets = {how.first: how.target for _, how in comparison.plain}
    for name in comparison.accounts.missing:  # what became of them may stand under another name
        area = comparison.first.stored.get(name)
        if area is not None and area.nbytes <= LARGEST and cut is None and not comparison.first.is_megatron:
            expected.setdefault(_usual(name), partial(_bits, files[0], area, targets.get(area.dtype, area.dtype), None))
    return Sides(expected, actual, previous, _heads(comparison), called)


def _heads(comparison: Comparison) -> Geometry:
    from ckptcheck.diagnosis import Geometry

    geometry = comparison.geometry
    return Geometry(heads=geometry.heads, kv_heads=geometry.groups, head_dim=geometry.head_dim)


def _usual(name: str) -> str:
    """Return a name in the form of most families: Mixtral calls gate, down and up of an expert w1, w2 and w3."""
    if ".block_sparse_moe." in name:
        for mixtral, usual in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            name = name.replace(f".{mixtral}.weight", f".{usual}.weight")
    return name.replace(".block_sparse_moe.", ".mlp.")


def _bits(files: Files, area: Area, target: str, cut: slabs.Cut | None) -> Bits:
    """Read a tensor, or a slab of it, in the dtype in which the two sides are compared."""
    from ckptcheck.diagnosis import Bits

    return Bits(target, cast(files.whole(area) if cut is None else slabs.read(files, area, cut), area.dtype, target))


def _called(comparison: Comparison, pair: Pair, name: str) -> dict[str, str]:
    """Return the name in Megatron's form, where one side has one."""
    sides = zip((comparison.first, comparison.second), pair.names, strict=True)
    stored = next((stored for side, stored in sides if side.is_megatron), None)
    return {name: stored} if stored is not None else {}
