"""The tensors of a checkpoint, grouped by the module whose weight they make up.

A quantized weight is several tensors: what is left of the numbers, the scales, and more. Most modules of a model are
stored alike, so each way of storing one (`Stored`) is kept once, and looked at once however many experts share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ckptcheck.checkpoint.tensor import Tensor

WEIGHTS = ("weight", "qweight", "weight_packed", "weight_blocks")
"""The tensor that holds the numbers themselves, by its role."""
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
"""dtypes in which a weight is not quantized."""
FUSED = re.compile(r"(gate_up_proj|down_proj|gate_proj|up_proj|w13|w1|w2|w3)(?:_(\w+))?")
"""Leaves of experts that share one tensor: a parameter, and its companions under its name (``gate_up_proj_blocks``)."""
FUSED_ROLES = {
    None: "weight", "weight": "weight", "packed": "weight_packed", "blocks": "weight_blocks", "scales": "weight_scales",
    "scale": "weight_scale", "scale_inv": "weight_scale_inv",
}  # fmt: skip
"""What follows the parameter's name → role; anything else is the role's own name (``weight_scale_2``, ``input_scale``)."""
BNB = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state")
"""Roles that bitsandbytes writes below the weight: ``q_proj.weight.absmax``, ``q_proj.weight.quant_state.bitsandbytes__nf4``."""
ROLES = frozenset((
    *WEIGHTS, "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_scales", "weight_zero_point", "weight_shape",
    "weight_g_idx", "weight_global_scale", "input_scale", "input_scale_2", "input_zero_point", "input_global_scale",
    "activation_scale", "scales", "qzeros", "g_idx", "scale", "scale_inv", "qscale_weight",
    "SCB", "weight_format",
))  # fmt: skip
"""Roles that belong to a weight. Others (biases, the scales of a cache) are nobody's companion here."""


@dataclass(frozen=True)
class Part:
    """One tensor of a module. ending: what its full name adds to the module's: ``.weight_scale``, ``_blocks``."""

    role: str
    ending: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stored:
    """A way of storing a module. parts: role → tensor."""

    parts: Mapping[str, Part]

    @cached_property
    def weight(self) -> Part | None:
        """The tensor that holds the numbers; None where companions are left without a weight."""
        return next((self.parts[role] for role in WEIGHTS if role in self.parts), None)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether the numbers are not stored as floats of 16 bits or more (bitsandbytes may pack them into such)."""
        if self.weight is None:
            return False
        return self.weight.role != "weight" or self.weight.dtype not in FLOATS or "absmax" in self.parts

    @cached_property
    def is_misnamed(self) -> bool:
        """Whether plain numbers stand alone under the name of packed ones: transformers 5.23 saves gpt-oss so, dequantized."""
        weight = self.weight
        return weight is not None and weight.role == "weight_blocks" and weight.dtype in FLOATS and not self.companions

    @cached_property
    def companions(self) -> tuple[str, ...]:
        """The roles beside the weight."""
        return tuple(role for role in self.parts if role not in WEIGHTS)

    def name(self, module: str, role: str) -> str:
        """Write the full name that a tensor of a module stored so has, or would have."""
        if (part := self.parts.get(role)) is not None:
            ending = part.ending
        elif role in BNB:
            ending = f".weight.{role}"
        elif self.weight is not None and not self.weight.ending.startswith("."):  # experts that share one tensor
            ending = "_" + role.removeprefix("weight_")
        else:
            ending = f".{role}"
        return f"{module}{ending}".removeprefix(".")


def stored_modules(tensors: Mapping[str, Tensor]) -> dict[Stored, list[str]]:
    """Return way of storing → the modules stored so. One pass, and one small key for a tensor.

    A module's tensors lie anywhere in a file, so a module is known by the number of the state that its tensors so far
    have led to; two orders of the same tensors are brought together in the end.
    """
    places: dict[str, tuple[str, str, str] | None] = {}
    plain: set[str] = set()
    states: dict[str, int] = {}
    steps: dict[tuple[int, str, str, tuple[int, ...]], int] = {}
    state, known = states.get, steps.get
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf not in plain:
            place = places[leaf] if leaf in places else places.setdefault(leaf, _place(leaf))
            if place is None:
                continue
            cut, added, _ = place
            if cut or added:
                module = module.removesuffix(".quant_state").removesuffix(cut) + added
            else:
                plain.add(leaf)
        key = (state(module, 0), leaf, tensor.dtype, tensor.shape)
        if (step := known(key)) is None:
            step = steps[key] = len(steps) + 1
        states[module] = step
    modules: dict[int, list[str]] = {}
    for module, number in states.items():
        modules.setdefault(number, []).append(module)
    return _ways(steps, modules, {leaf: place for leaf, place in places.items() if place is not None})


def _place(leaf: str) -> tuple[str, str, str] | None:
    """Return what a leaf cuts from and adds to the name before it to make the module's, and its role; None for no role."""
    if leaf in BNB or leaf.startswith("bitsandbytes__"):
        return ".weight", "", leaf if leaf in BNB else "quant_state"
    if leaf in ROLES:
        return "", "", leaf
    if fused := FUSED.fullmatch(leaf):
        role = FUSED_ROLES.get(fused[2], fused[2])
        if role in ROLES:
            return "", f".{fused[1]}", role
    return None


def _ways(
    steps: Mapping[tuple[int, str, str, tuple[int, ...]], int],
    modules: Mapping[int, list[str]],
    places: Mapping[str, tuple[str, str, str]],
) -> dict[Stored, list[str]]:
    """Turn states back into the tensors that led to them; the step before a step always has a smaller number."""
    parts: list[dict[str, Part]] = [{}]
    for before, leaf, dtype, shape in steps:
        cut, added, role = places[leaf]
        fused = leaf.removeprefix(added[1:]) if added else ""
        below = f".weight.quant_state.{leaf}" if role == "quant_state" else f".weight.{leaf}"
        ending = fused if added else below if cut else f".{leaf}"
        parts.append({**parts[before], role: Part(role, ending, dtype, shape)})
    found: dict[tuple[Part, ...], tuple[Stored, list[str]]] = {}
    for number, names in modules.items():
        way = parts[number]
        key = tuple(way[role] for role in sorted(way))
        found.setdefault(key, (Stored(way), []))[1].extend(names)
    return dict(found.values())
