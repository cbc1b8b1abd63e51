"""Describes how a checkpoint is quantized: what its configs declare and how its tensors are stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.quantization.declarations import KNOWN, Declaration, declarations
from ckptcheck.checkpoint.quantization.schemes import Scheme, parse_schemes
from ckptcheck.checkpoint.quantization.storage import ModuleStorage, TensorKind, group_by_storage
from ckptcheck.checkpoint.tensor import Tensor

IGNORES = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude", "llm_int8_skip_modules")
"""Keys of the ignore lists (modules that stay unquantized) of the methods, in the order in which vLLM reads them."""


class IgnoreEntry(msgspec.Struct, frozen=True):
    """An entry of an ignore list."""

    text: str
    """The entry as it is written."""
    file: str
    key: str
    """JSON path of the entry."""


class Quantization(msgspec.Struct, frozen=True, dict=True):
    """How a checkpoint is quantized."""

    declarations: tuple[Declaration, ...]
    """Every config that declares a quantization, in the order in which consumers read them; () if only tensors show it."""
    storages: Mapping[ModuleStorage, list[str]]
    """Storage → the modules with this storage, quantized or not."""

    @property
    def main_declaration(self) -> Declaration | None:
        """The declaration that consumers read first; None without one."""
        return self.declarations[0] if self.declarations else None

    @property
    def method(self) -> str | None:
        """The normalised name of the method (``compressed-tensors``, ``fp8``, ``gptq``, …); None if no config names one."""
        return self.main_declaration.method if self.main_declaration is not None else None

    @property
    def is_known_method(self) -> bool:
        """Whether ckptcheck knows the tensors of the method."""
        return self.method in KNOWN

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the main declaration; {} without one."""
        return self.main_declaration.value if self.main_declaration is not None else {}

    @cached_property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes (bits, groups, activations) of the main method's first declaration that has any."""
        own = (parse_schemes(declared) for declared in self.declarations if declared.method == self.method)
        return next((schemes for schemes in own if schemes), ())

    @cached_property
    def ignore(self) -> tuple[IgnoreEntry, ...]:
        """The entries of the main declaration's ignore lists; entries that are no strings are omitted."""
        return self.ignored_by(self.main_declaration) if self.main_declaration is not None else ()

    @staticmethod
    def ignored_by(declared: Declaration) -> tuple[IgnoreEntry, ...]:
        """Return the entries of a declaration's ignore lists."""
        return tuple(
            IgnoreEntry(text, declared.file, declared.key_path(name, str(number)))
            for name in IGNORES
            if isinstance(declared.value.get(name), list)
            for number, text in enumerate(declared.value[name])
            if isinstance(text, str)
        )

    @cached_property
    def storage_by_module(self) -> dict[str, ModuleStorage]:
        """Module → its storage, for every module that has a weight or a companion of a weight."""
        return {module: stored for stored, modules in self.storages.items() for module in modules}


def read_quantization(
    config: Config | None,
    side: Mapping[str, Config],
    tensors: Mapping[str, Tensor],
    kinds: Mapping[str, TensorKind] | None = None,
) -> Quantization | None:
    """Return how a checkpoint is quantized; None if no config declares it and no tensor shows it.

    kinds: see `group_by_storage`.
    """
    declared = declarations(config, side)
    stored = group_by_storage(tensors, kinds)
    if not declared and not any(way.is_quantized and (way.companions or way.is_misnamed) for way in stored):
        return None
    return Quantization(declared, stored)
