"""Why tensors differ, as far as the bank of hypotheses knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.comparison.cast import cast
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.diagnosis import Bits, Verdict

MOST = 256
"""Tensors that are looked at, spread over kinds and layers."""
LARGEST = 1 << 27
"""Bytes of a tensor from which no cause is looked for: it would be held in memory whole."""


def reasons(comparison: Comparison) -> list[Verdict]:
    """Return verdicts over the tensors that differ. Raises EvidenceError where a file cannot be read any more."""
    from ckptcheck.diagnosis import Geometry, Sides, diagnose

    geometry = comparison.geometry
    different = [pair.name for pair, _, _ in comparison.findings.different if pair.first.nbytes <= LARGEST]
    if not different:
        return []
    with Files(comparison.first.source) as ours, Files(comparison.second.source) as theirs:
        expected: dict[str, Callable[[], Bits]] = {}
        actual: dict[str, Callable[[], Bits]] = {}
        called: dict[str, str] = {}
        own: dict[str, str] = {}
        for pair, how in comparison.plain:
            if pair.first.nbytes > LARGEST:
                continue
            assert isinstance(pair.first, Area)
            assert isinstance(pair.second, Area)
            name = _usual(pair.name)
            own[name] = pair.name
            expected[name] = partial(_bits, ours, pair.first, how.target)
            actual[name] = partial(_bits, theirs, pair.second, how.target)
            called |= _called(comparison, pair, name)
        sides = Sides(
            expected,
            actual,
            geometry=Geometry(heads=geometry.heads, kv_heads=geometry.groups, head_dim=geometry.head_dim),
            called=called,
        )
        try:
            verdicts = diagnose(sides, map(_usual, different), most=MOST)
        except Unreadable as error:
            raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
    return [replace(verdict, tensors=tuple(own[name] for name in verdict.tensors)) for verdict in verdicts]


def _usual(name: str) -> str:
    """Return a name in the form of most families: Mixtral calls gate, down and up of an expert w1, w2 and w3."""
    if ".block_sparse_moe." in name:
        for mixtral, usual in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            name = name.replace(f".{mixtral}.weight", f".{usual}.weight")
    return name.replace(".block_sparse_moe.", ".mlp.")


def _bits(files: Files, area: Area, target: str) -> Bits:
    """Read a tensor whole, in the dtype in which the two sides are compared."""
    from ckptcheck.diagnosis import Bits

    return Bits(target, cast(files.whole(area), area.dtype, target))


def _called(comparison: Comparison, pair: Pair, name: str) -> dict[str, str]:
    """Return the name in Megatron's form, where one side has one."""
    sides = zip((comparison.first, comparison.second), pair.names, strict=True)
    stored = next((stored for side, stored in sides if side.is_megatron), None)
    return {name: stored} if stored is not None else {}
