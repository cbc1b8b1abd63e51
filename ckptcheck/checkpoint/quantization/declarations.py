"""Finds the places where a checkpoint declares its quantization, and the method that each declares.

vLLM and SGLang read ``quantization_config`` of config.json (of its text part if a model has several), then
``compression_config``, then the file of the method: hf_quant_config.json (ModelOpt), quantize_config.json (AutoGPTQ),
quant_config.json (AutoAWQ). transformers reads only the first. Source: vllm/config/model.py `_parse_quant_hf_config`,
vllm/model_executor/model_loader/weight_utils.py `get_quant_config` (0.32), transformers/quantizers/auto.py (5.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import Config

KEYS = ("quantization_config", "compression_config")
SIDE_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""File that the tools of a method write beside config.json → the method that it declares by default."""
NESTED_FILE = "hf_quant_config.json"
"""The side file that nests its settings below ``quantization``."""
ALIASES = {
    "compressed_tensors": "compressed-tensors", "gptq_marlin": "gptq", "auto_gptq": "gptq", "gptqmodel": "gptq",
    "awq_marlin": "awq", "auto_awq": "awq", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": "modelopt",
    "modelopt_fp8": "modelopt", "modelopt_mixed": "modelopt", "modelopt_mxfp8": "modelopt",
}  # fmt: skip
"""Names that consumers use for the same method → its normalised name."""
KNOWN = ("compressed-tensors", "fp8", "gptq", "awq", "modelopt", "mxfp4", "bitsandbytes", "quark", "auto-round")
"""Methods whose tensors ckptcheck knows."""


class Declaration(msgspec.Struct, frozen=True):
    """One place that declares a quantization."""

    file: str
    key: str
    """JSON path of the object in the file; empty for the whole file."""
    value: Mapping[str, Any]
    """The object with the settings; for hf_quant_config.json its inner ``quantization``."""
    method: str | None
    """Normalised name of the method; None if the object does not name one."""

    def document(self, **changes: Any) -> Mapping[str, Any]:
        """Return the object that consumers parse, with settings changed: for hf_quant_config.json the whole file.

        Consumers decide by the nesting: in that file the list is ``exclude_modules``, beside ``quant_algo`` it is ``ignore``.
        """
        value = {**self.value, **changes}
        return {self.key: value} if self.file == NESTED_FILE and self.key else value

    def key_path(self, *names: str) -> str:
        """Return the JSON path of a setting, for a finding."""
        return ".".join(part for part in (self.key, *names) if part)


def parse_method(value: Mapping[str, Any], default: str | None = None) -> str | None:
    """Return the normalised name of the method that an object of settings declares, else `default`."""
    named = value.get("quant_method")
    if isinstance(named, str) and named:
        lower = named.lower()
        return ALIASES.get(lower, lower)
    if value.get("load_in_4bit") is True or value.get("load_in_8bit") is True:
        return "bitsandbytes"  # as transformers 5.23 reads configs older than quant_method
    return default


def find_mlx_settings(config: Config) -> Mapping[str, Any] | None:
    """Return the object by which MLX declares its packed weights, or None.

    It is ``quantization``, with a group size and a number of bits. Newer versions also write it under ``quantization_config``,
    without a method (mlx_lm/utils.py `save_config`).
    """
    value = config.value.get("quantization")
    if not isinstance(value, dict) or not {"group_size", "bits"} <= value.keys() or "quant_method" in value:
        return None
    return value if config.value.get("quantization_config", value) == value else None


def declarations(config: Config | None, side: Mapping[str, Config]) -> tuple[Declaration, ...]:
    """Return every place that declares a quantization, in the order in which consumers read them."""
    declarations_found: list[Declaration] = []
    if config is not None:
        nested = config.nested_name
        if (mlx := find_mlx_settings(config)) is not None:
            return (Declaration(config.file, "quantization", mlx, "mlx"),)
        for key in KEYS:
            for prefix, part in (("", config.value), (nested, config.text)):
                value = part.get(key)
                path = f"{prefix}.{key}" if prefix else key
                if isinstance(value, dict) and not any(value is other.value for other in declarations_found):
                    declarations_found.append(Declaration(config.file, path, value, parse_method(value)))
    for file, method in SIDE_FILES.items():
        if file in side and side[file].readable:
            value, key = side[file].value, ""
            if file == NESTED_FILE and isinstance(value.get("quantization"), dict):
                value, key = value["quantization"], "quantization"
            declarations_found.append(Declaration(file, key, value, parse_method(value, method)))
    # Engines read the side file if config.json has mixed precision without each layer's algorithm (get_quant_config of both).
    return tuple(sorted(declarations_found, key=lambda declared: not _completes(declared, declarations_found)))


def _completes(declared: Declaration, others: Iterable[Declaration]) -> bool:
    """Whether a side file has the per-layer algorithms that ModelOpt's declaration in config.json lacks, as for some Nemotron."""
    return (
        declared.file == NESTED_FILE
        and "quantized_layers" in declared.value
        and any(
            other.file != NESTED_FILE
            and other.method == "modelopt"
            and str(other.value.get("quant_algo")).upper() == "MIXED_PRECISION"
            and "quantized_layers" not in other.value
            for other in others
        )
    )
