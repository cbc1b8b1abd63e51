"""Groups a fault that many modules share, so that a rule reports it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.faults import FormatFault, find_format_faults
from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.consumers.gptq_schemes import make_scheme_selector
from ckptcheck.linter.evidence import remembered
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class FaultGroup:
    """A fault at its first module, and the modules that share it."""

    fault: FormatFault
    file: str | None
    key: str
    """The name of the tensor at fault, which may be missing."""
    weight: str | None
    """The name of the weight's tensor, or None."""
    modules: tuple[str, ...]
    """All modules with the fault, in order."""

    @property
    def others(self) -> str:
        """The further modules, as an insertion into a sentence; empty if there are none."""
        rest = self.modules[1:]
        if not rest:
            return ""
        return f", as in {len(rest):,} more {'module' if len(rest) == 1 else 'modules'} ({join_truncated(rest, 2)})"


SCHEME_FAULTS = ("dtype", "shape")
"""Kinds of faults whose text names the scheme."""


@remembered
def _faults(ckpt: Checkpoint) -> list[tuple[FormatFault, ModuleStorage, list[str]]]:
    """Return all faults, computed once for all rules. Raises Skip if ckptcheck does not know the format."""
    assert ckpt.quantization is not None
    return find_format_faults(ckpt.quantization, make_scheme_selector(ckpt))


def group_faults(ckpt: Checkpoint, *kinds: str) -> Iterator[FaultGroup]:
    """Yield the faults of these kinds: one group for each role of a tensor and dtype of its weight.

    Faults in `SCHEME_FAULTS` are also grouped by their scheme.
    """
    assert ckpt.quantization is not None
    groups: dict[tuple[str, str, str, str], list[tuple[FormatFault, ModuleStorage, list[str]]]] = {}
    for fault, storage, modules in _faults(ckpt):
        if fault.kind in kinds:
            dtype = storage.weight.dtype if storage.weight is not None else ""
            scheme = fault.scheme.key if fault.scheme is not None and fault.kind in SCHEME_FAULTS else ""
            groups.setdefault((fault.kind, fault.role, dtype, scheme), []).append((fault, storage, modules))
    for members in groups.values():
        places = sorted((module, number) for number, (_, _, modules) in enumerate(members) for module in modules)
        module, number = places[0]
        fault, storage, _ = members[number]
        key = storage.name(module, fault.role)
        weight = storage.name(module, storage.weight.role) if storage.weight is not None else None
        file = ckpt.tensor_to_file.get(key) or ckpt.tensor_to_file.get(weight or "")
        yield FaultGroup(fault, file, key, weight, tuple(module for module, _ in places))
