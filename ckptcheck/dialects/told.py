"""Tells a fault that many modules share as one problem: its first place, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ckptcheck.checkpoint.quantization.faults import Fault, faults_of
from ckptcheck.checkpoint.quantization.stored import Stored
from ckptcheck.dialects.overridden import held
from ckptcheck.phrase import few

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class Told:
    """A fault at its first module. key: the tensor at fault, there or missing. modules: all that share it, in order.

    weight: the name of the weight's tensor, None where there is none.
    """

    fault: Fault
    file: str | None
    key: str
    weight: str | None
    modules: tuple[str, ...]

    @property
    def others(self) -> str:
        """Name the further modules, as an insertion; empty where there are none."""
        rest = self.modules[1:]
        if not rest:
            return ""
        return f", as in {len(rest):,} more {'module' if len(rest) == 1 else 'modules'} ({few(rest, 2)})"


OF_SCHEME = ("dtype", "shape", "excluded")
"""Kinds of faults whose text names the scheme."""
_FAULTS: WeakKeyDictionary[Checkpoint, list[tuple[Fault, Stored, list[str]]]] = WeakKeyDictionary()


def _faults(ckpt: Checkpoint) -> list[tuple[Fault, Stored, list[str]]]:
    """Find what is wrong once for all rules. Skips the rule where nobody here knows what to expect."""
    assert ckpt.quantization is not None
    if ckpt not in _FAULTS:
        _FAULTS[ckpt] = faults_of(ckpt.quantization, held(ckpt))
    return _FAULTS[ckpt]


def told(ckpt: Checkpoint, *kinds: str) -> Iterator[Told]:
    """Yield the faults of these kinds, one for each tensor's role and the dtype of the weight it belongs to.

    One for each scheme too, where a scheme is what the tensors break.
    """
    assert ckpt.quantization is not None
    groups: dict[tuple[str, str, str, str], list[tuple[Fault, Stored, list[str]]]] = {}
    for fault, stored, modules in _faults(ckpt):
        if fault.kind in kinds:
            dtype = stored.weight.dtype if stored.weight is not None else ""
            scheme = fault.scheme.key if fault.scheme is not None and fault.kind in OF_SCHEME else ""
            groups.setdefault((fault.kind, fault.role, dtype, scheme), []).append((fault, stored, modules))
    for members in groups.values():
        places = sorted((module, number) for number, (_, _, modules) in enumerate(members) for module in modules)
        module, number = places[0]
        fault, stored, _ = members[number]
        key = stored.name(module, fault.role)
        weight = stored.name(module, stored.weight.role) if stored.weight is not None else None
        file = ckpt.holders.get(key) or ckpt.holders.get(weight or "")
        yield Told(fault, file, key, weight, tuple(module for module, _ in places))
