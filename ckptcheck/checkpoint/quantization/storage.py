"""Groups the tensors of a checkpoint by the module whose weight they form.

A quantized weight is several tensors: the packed numbers, the scales, and more. Most modules of a model are stored alike, so
each distinct storage (`ModuleStorage`) is kept and checked once, however many modules have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec

from ckptcheck.checkpoint.tensor import Tensor

WEIGHTS = ("weight", "qweight", "weight_packed", "weight_blocks")
"""Roles of the tensor that holds the numbers."""
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
"""dtypes of unquantized weights."""
FUSED = re.compile(r"(gate_up_proj|down_proj|gate_proj|up_proj|w13|w1|w2|w3)(?:_(\w+))?")
"""Last parts of the names of fused experts: a parameter, or a companion named after it (``gate_up_proj_blocks``)."""
FUSED_ROLES = {
    None: "weight", "weight": "weight", "packed": "weight_packed", "blocks": "weight_blocks", "scales": "weight_scales",
    "scale": "weight_scale", "scale_inv": "weight_scale_inv", "shape": "weight_shape",
}  # fmt: skip
"""Suffix after the parameter's name → role; any other suffix is the role itself (``weight_scale_2``, ``input_scale``)."""
BNB = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state")
"""Roles that bitsandbytes puts below the weight: ``q_proj.weight.absmax``, ``q_proj.weight.quant_state.bitsandbytes__nf4``."""
ROLES = frozenset((
    *WEIGHTS, "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_scales", "weight_zero_point", "weight_shape",
    "weight_g_idx", "weight_global_scale", "input_scale", "input_scale_2", "input_zero_point", "input_global_scale",
    "activation_scale", "scales", "qzeros", "g_idx", "scale", "scale_inv", "qscale_weight",
    "SCB", "weight_format",
))  # fmt: skip
"""Roles of tensors that belong to a weight. Other tensors (biases, scales of the key-value cache) do not."""


class ModuleTensor(msgspec.Struct, frozen=True):
    """One tensor of a module."""

    role: str
    """Its role beside the weight: ``weight``, ``weight_scale``, …"""
    ending: str
    """The part of its full name after the module's name: ``.weight_scale``, ``_blocks``."""
    dtype: str
    shape: tuple[int, ...]


class ModuleStorage(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How a module is stored: the roles, dtypes and shapes of its tensors."""

    parts: Mapping[str, ModuleTensor]
    """Role → tensor."""

    @cached_property
    def weight(self) -> ModuleTensor | None:
        """The tensor that holds the numbers; None if there are companions but no weight."""
        return next((self.parts[role] for role in WEIGHTS if role in self.parts), None)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether the weight is quantized: stored in fewer than 16 bits, or packed into wider floats by bitsandbytes."""
        if self.weight is None:
            return False
        return self.weight.role != "weight" or self.weight.dtype not in FLOATS or "absmax" in self.parts

    @cached_property
    def is_column_of_bytes(self) -> bool:
        """Whether the weight is one column of bytes without anything beside it, as bitsandbytes packs 4-bit numbers."""
        weight = self.weight
        is_bytes = weight is not None and weight.role == "weight" and weight.dtype in ("U8", "I8")
        return is_bytes and weight is not None and weight.shape[1:] == (1,) and not self.companions

    @cached_property
    def is_misnamed(self) -> bool:
        """Whether an unquantized weight has the name of a packed one, as when transformers 5.23 saves a dequantized gpt-oss."""
        weight = self.weight
        return weight is not None and weight.role == "weight_blocks" and weight.dtype in FLOATS and not self.companions

    @cached_property
    def companions(self) -> tuple[str, ...]:
        """The roles of the tensors other than the weight."""
        return tuple(role for role in self.parts if role not in WEIGHTS)

    def name(self, module: str, role: str) -> str:
        """Return the full name that the tensor of this role has, or would have, in a module with this storage."""
        if (part := self.parts.get(role)) is not None:
            ending = part.ending
        elif role in BNB:
            ending = f".weight.{role}"
        elif self.weight is not None and not self.weight.ending.startswith("."):  # experts that share one tensor
            ending = "_" + role.removeprefix("weight_")
        else:
            ending = f".{role}"
        return f"{module}{ending}".removeprefix(".")


class TensorKind(NamedTuple):
    """Tensors whose names differ only in their numbers."""

    names: list[str]
    forms: set[tuple[str, tuple[int, ...]]]
    """The dtypes and shapes that they have."""


def group_by_storage(
    tensors: Mapping[str, Tensor], kinds: Mapping[str, TensorKind] | None = None
) -> dict[ModuleStorage, list[str]]:
    """Map each distinct storage to the modules that have it.

    kinds: by the name of their tensors with {} for each number. If all tensors of a kind have one form, its modules are grouped
    at once, which is faster; None: look at each tensor on its own.
    """
    storages: dict[frozenset[ModuleTensor], tuple[ModuleStorage, list[str]]] = {}
    leaves_by_module: dict[str, list[str]] = {}
    for template in kinds or ():
        module, _, leaf = template.rpartition(".")
        if (place := _place(leaf)) is not None:
            leaves_by_module.setdefault(module, []).append(leaf)
            if place != ("", "", leaf):  # such a tensor may belong to the module of another template
                return group_by_storage(tensors)
    names: list[str] = []
    for template, leaves in leaves_by_module.items():
        assert kinds is not None
        kinds_of_module = {leaf: kinds[f"{template}.{leaf}" if template else leaf] for leaf in leaves}
        if not template or (uniform := _group_at_once(kinds_of_module)) is None:
            names.extend(chain.from_iterable(kind.names for kind in kinds_of_module.values()))
        else:
            parts, modules = uniform
            _add(storages, parts, modules)
    for parts, modules in _group_one_by_one(tensors, tensors if kinds is None else names):
        _add(storages, parts, modules)
    return dict(storages.values())


def _add(
    storages: dict[frozenset[ModuleTensor], tuple[ModuleStorage, list[str]]],
    parts: dict[str, ModuleTensor],
    modules: list[str],
) -> None:
    """Add modules to the modules with the same storage."""
    storages.setdefault(frozenset(parts.values()), (ModuleStorage(parts), []))[1].extend(modules)


def _group_at_once(kinds: Mapping[str, TensorKind]) -> tuple[dict[str, ModuleTensor], list[str]] | None:
    """Return the storage of the modules of one kind, and their names; None if their storages differ.

    kinds: by the last part of the names of the tensors.
    """
    modules: list[str] = []
    parts: dict[str, ModuleTensor] = {}
    for leaf, kind in kinds.items():
        ending = f".{leaf}"
        if not parts:
            modules = [name[: -len(ending)] for name in kind.names]
        elif len(kind.names) != len(modules) or [module + ending for module in modules] != kind.names:
            return None
        if len(kind.forms) != 1:
            return None
        ((dtype, shape),) = kind.forms
        parts[leaf] = ModuleTensor(leaf, ending, dtype, shape)
    return parts, modules


def _group_one_by_one(
    tensors: Mapping[str, Tensor], names: Iterable[str]
) -> Iterator[tuple[dict[str, ModuleTensor], list[str]]]:
    """Yield storages, with the modules that have them, in one pass over the names. A storage may come more than once.

    The tensors of a module may lie anywhere in a file. So each module has a state, a number for the tensors seen so far; two
    orders of the same tensors lead to two states with the same storage.
    """
    places: dict[str, tuple[str, str, str]] = {}
    states: dict[str, int] = {}
    steps: dict[tuple[int, str, str, tuple[int, ...]], int] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if (place := places.get(leaf) or _place(leaf)) is None:
            continue
        cut, added, _ = places[leaf] = place
        if cut or added:
            module = module.removesuffix(".quant_state").removesuffix(cut) + added
        tensor = tensors[name]
        states[module] = steps.setdefault((states.get(module, 0), leaf, tensor.dtype, tensor.shape), len(steps) + 1)
    modules: dict[int, list[str]] = {}
    for module, number in states.items():
        modules.setdefault(number, []).append(module)
    # Turn states back into the tensors that led to them; the predecessor of a step always has a smaller number.
    parts: list[dict[str, ModuleTensor]] = [{}]
    for before, leaf, dtype, shape in steps:
        cut, added, role = places[leaf]
        fused = leaf.removeprefix(added[1:]) if added else ""
        below = f".weight.quant_state.{leaf}" if role == "quant_state" else f".weight.{leaf}"
        ending = fused if added else below if cut else f".{leaf}"
        parts.append({**parts[before], role: ModuleTensor(role, ending, dtype, shape)})
    for number, names_of_modules in modules.items():
        yield parts[number], names_of_modules


def _place(leaf: str) -> tuple[str, str, str] | None:
    """Return how to get from the last part of a name to its module: the suffix to cut, the suffix to add, and the role.

    None for a tensor that belongs to no weight.
    """
    if leaf in BNB or leaf.startswith("bitsandbytes__"):
        return ".weight", "", leaf if leaf in BNB else "quant_state"
    if leaf in ROLES:
        return "", "", leaf
    if fused := FUSED.fullmatch(leaf):
        role = FUSED_ROLES.get(fused[2], fused[2])
        if role in ROLES:
            return "", f".{fused[1]}", role
    return None
