"""Groups a fault that many modules share, so that a rule reports it once.

Some modules have settings of their own, or none: GPTQ has patterns in ``dynamic``, AutoRound names and patterns in
``extra_config``. GPTQModel, which writes such checkpoints, and transformers, which loads them through it, match the module's own
name (`dynamic_get` of gptqmodel/quantization/config.py). vLLM and SGLang match the name of the module that they build
(``qkv_proj``), so a pattern may be written for that name. It counts if no pattern matches the module's own name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.quantization.faults import FormatFault, SchemeSelector, find_format_faults
from ckptcheck.checkpoint.quantization.quantization import Quantization
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.consumers.base import ConsumerError, UnknownBehavior
from ckptcheck.consumers.gptq import read_dynamic_patterns
from ckptcheck.consumers.mismatches import evaluate_checkpoint, to_first_expert
from ckptcheck.linter.evidence import remembered
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class FaultGroup(msgspec.Struct, frozen=True):
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
    faults = find_format_faults(ckpt.quantization, make_scheme_selector(ckpt))
    if all(len(shape) <= 1 for forms in ckpt.forms_by_template.values() for _, shape in forms):
        faults = [fault for fault in faults if fault[0].kind != "shape"]  # CFG012: flat shards of one rank
    if ckpt.quantization.method == "bitsandbytes":
        return faults
    return [fault for fault in faults if not fault[1].is_column_of_bytes]  # CFG021 names the tool


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


def make_scheme_selector(ckpt: Checkpoint) -> SchemeSelector | None:
    """Return a function from module to the schemes it may have; None if it may have any of the declared ones."""
    quantization = ckpt.quantization
    if quantization is None or len(quantization.schemes) < 2:
        return None
    if quantization.method == "auto-round":
        return _select_by_name(quantization)
    if quantization.method != "gptq":
        return None
    every, *special = quantization.schemes
    entries = read_dynamic_patterns([scheme.targets[0] for scheme in special], like_regex=True)
    verdicts = [view.decisions for view in evaluate_checkpoint(ckpt).values()]

    @cache
    def scheme(name: str) -> Scheme | None:
        """Return the scheme of the first pattern that matches a name."""
        hit = entries.first_match(name)
        return special[hit] if hit is not None else None

    def choose(module: str) -> tuple[Scheme, ...]:
        try:
            if (own := scheme(module)) is not None:
                return (own,) if own.weights is not None or own.targets[0].startswith("-:") else ()
            built_names = [
                by_module[name][0].name
                for by_module in verdicts
                for name in (module, to_first_expert(module))
                if name in by_module
            ]
            return tuple(
                dict.fromkeys(
                    [every, *(special_scheme for name in built_names if (special_scheme := scheme(name)) is not None)]
                )
            )
        except (ConsumerError, UnknownBehavior):
            return quantization.schemes

    return choose


def _select_by_name(quantization: Quantization) -> SchemeSelector:
    """Return a function that gives a module the scheme that names it, else every scheme that may be a pattern for it."""
    every, *special = quantization.schemes
    named = {scheme.targets[0]: scheme for scheme in special if scheme.targets[0] in quantization.storage_by_module}
    others = (every, *(scheme for scheme in special if scheme.targets[0] not in named))

    def choose(module: str) -> tuple[Scheme, ...]:
        return (named[module],) if module in named else others

    return choose
