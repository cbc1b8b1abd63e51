"""Why tensors differ, as far as the bank of hypotheses knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.comparison import slabs
from ckptcheck.comparison.cast import cast
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.diagnosis import Bits, Sides, Verdict

MOST = 256
"""Tensors that are looked at, spread over kinds and layers."""
LARGEST = 1 << 27
"""Bytes of a tensor from which it is not held in memory whole, but looked at in slabs."""


def reasons(comparison: Comparison) -> list[Verdict]:
    """Return verdicts over the tensors that differ. Raises EvidenceError where a file cannot be read any more."""
    from ckptcheck.diagnosis import diagnose

    large: dict[str, Area] = {}
    small: list[str] = []
    for pair, _, _ in comparison.findings.different:
        assert isinstance(pair.first, Area)
        if pair.first.nbytes > LARGEST:
            large[_usual(pair.name)] = pair.first
        else:
            small.append(_usual(pair.name))
    own = {_usual(pair.name): pair.name for pair, _ in comparison.plain}
    with Files(comparison.first.source) as ours, Files(comparison.second.source) as theirs:
        try:
            found = slabs.verdicts(large, partial(_sides, comparison, (ours, theirs)))
            known = {name for verdict in found for name in verdict.tensors if "unknown" not in verdict.causes}
            if rest := [name for name in small if name not in known]:
                found += diagnose(_sides(comparison, (ours, theirs), None), rest, most=MOST)
        except Unreadable as error:
            raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
    return [
        replace(verdict, tensors=tuple(dict.fromkeys(_stored(own, name) for name in verdict.tensors)))
        for verdict in found
    ]


def _stored(own: Mapping[str, str], name: str) -> str:
    """Return the name of the tensor of which a verdict speaks; of one that stacks experts it names a slice: ``NAME[3]``."""
    return own[name] if name in own else own[name.rpartition("[")[0]]


def _sides(
    comparison: Comparison, files: tuple[Files, Files], cut: slabs.Cut | None, only: Iterable[str] | None = None
) -> Sides:
    """Return the readers of both sides: of whole tensors without the large ones, or of one slab of each that has columns.

    only: names beyond which nothing is looked at.
    """
    from ckptcheck.diagnosis import Geometry, Sides

    expected: dict[str, Callable[[], Bits]] = {}
    actual: dict[str, Callable[[], Bits]] = {}
    called: dict[str, str] = {}
    wanted = None if only is None else set(only)
    for pair, how in comparison.plain:
        assert isinstance(pair.first, Area)
        assert isinstance(pair.second, Area)
        name = _usual(pair.name)
        if (pair.first.nbytes > LARGEST and cut is None) or (wanted is not None and name not in wanted):
            continue
        part = cut if len(pair.first.shape) > 1 else None
        expected[name] = partial(_bits, files[0], pair.first, how.target, part)
        actual[name] = partial(_bits, files[1], pair.second, how.target, part)
        called |= _called(comparison, pair, name)
    geometry = comparison.geometry
    return Sides(
        expected,
        actual,
        geometry=Geometry(heads=geometry.heads, kv_heads=geometry.groups, head_dim=geometry.head_dim),
        called=called,
    )


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
