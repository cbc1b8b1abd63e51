"""The read model of a quantized checkpoint, for every rule that asks how it is quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.quantization.declared import KNOWN, Declaration, declarations
from ckptcheck.checkpoint.quantization.schemes import Args, Scheme, args_of, schemes_of
from ckptcheck.checkpoint.quantization.stored import Stored, stored_modules
from ckptcheck.checkpoint.tensor import Tensor

IGNORES = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude", "llm_int8_skip_modules")
"""Names that the methods give to the list of modules left alone, in the order in which vLLM reads them."""


@dataclass(frozen=True)
class Entry:
    """An entry of a list of modules that are left alone, as it was written, and where."""

    text: str
    file: str
    key: str


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint is quantized.

    declared: every config that says so, the one that consumers read first in front; () where only tensors show it.
    stored: way of storing → the modules stored so, quantized or not.
    """

    declared: tuple[Declaration, ...]
    stored: Mapping[Stored, list[str]] = field(repr=False)

    @property
    def main(self) -> Declaration | None:
        """The declaration that consumers follow."""
        return self.declared[0] if self.declared else None

    @property
    def method(self) -> str | None:
        """The normalised name of the method (``compressed-tensors``, ``fp8``, ``gptq``, …); None where none is named."""
        return self.main.method if self.main is not None else None

    @property
    def known(self) -> bool:
        """Whether the method's tensors are known here."""
        return self.method in KNOWN

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the main declaration, {} without one."""
        return self.main.value if self.main is not None else {}

    @cached_property
    def schemes(self) -> tuple[Scheme, ...]:
        """What the configs say of bits, groups and activations: the first that says it, among those of the main one's method."""
        own = (schemes_of(declared) for declared in self.declared if declared.method == self.method)
        return next((schemes for schemes in own if schemes), ())

    @cached_property
    def ignore(self) -> tuple[Entry, ...]:
        """The entries of the main declaration's lists of modules that are left alone; what is no text is left out."""
        return self.ignored_by(self.main) if self.main is not None else ()

    @cached_property
    def kv_cache(self) -> Args | None:
        """How the key-value cache is quantized, None where it is not."""
        return self.kv_cache_of(self.main) if self.main is not None else None

    @staticmethod
    def ignored_by(declared: Declaration) -> tuple[Entry, ...]:
        """Return the entries of a declaration's lists of modules that are left alone."""
        return tuple(
            Entry(text, declared.file, declared.path(name, str(number)))
            for name in IGNORES
            if isinstance(declared.value.get(name), list)
            for number, text in enumerate(declared.value[name])
            if isinstance(text, str)
        )

    @staticmethod
    def kv_cache_of(declared: Declaration) -> Args | None:
        """Return what `kv_cache_scheme`, or ModelOpt's `kv_cache_quant_algo`, says."""
        if (scheme := args_of(declared.value.get("kv_cache_scheme"))) is not None:
            return scheme
        algo = declared.value.get("kv_cache_quant_algo")
        known = {"FP8": Args(8, "float", "tensor"), "NVFP4": Args(4, "float", "tensor_group", 16)}
        return known.get(algo.upper()) if isinstance(algo, str) else None

    @cached_property
    def layers(self) -> dict[str, Stored]:
        """Module → how it is stored, for every module with a weight or a companion of one."""
        return {module: stored for stored, modules in self.stored.items() for module in modules}


def quantization_of(
    config: Config | None, side: Mapping[str, Config], tensors: Mapping[str, Tensor]
) -> Quantization | None:
    """Return how a checkpoint is quantized, None where no config says that it is and no tensor shows it."""
    declared = declarations(config, side)
    stored = stored_modules(tensors)
    if not declared and not any(way.is_quantized and (way.companions or way.is_misnamed) for way in stored):
        return None
    return Quantization(declared, stored)
