"""Where a checkpoint says how it is quantized, and the name of the method.

vLLM and SGLang read ``quantization_config`` of config.json (of its text part where a model has several), then
``compression_config``, then the file of the method: hf_quant_config.json (ModelOpt), quantize_config.json (AutoGPTQ),
quant_config.json (AutoAWQ). transformers reads only the first. Source: vllm/config/model.py `_parse_quant_hf_config`,
vllm/model_executor/model_loader/weight_utils.py `get_quant_config` (0.32), transformers/quantizers/auto.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptcheck.checkpoint.config import Config

KEYS = ("quantization_config", "compression_config")
SIDE_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""File that a method's own tools write beside config.json → the method it stands for where it names none."""
ALIASES = {
    "compressed_tensors": "compressed-tensors", "gptq_marlin": "gptq", "auto_gptq": "gptq", "gptqmodel": "gptq",
    "awq_marlin": "awq", "auto_awq": "awq", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": "modelopt",
    "modelopt_fp8": "modelopt", "modelopt_mixed": "modelopt", "modelopt_mxfp8": "modelopt",
}  # fmt: skip
"""Names that consumers give to the same format."""
KNOWN = ("compressed-tensors", "fp8", "gptq", "awq", "modelopt", "mxfp4", "bitsandbytes", "quark")
"""Methods whose tensors are known here."""


@dataclass(frozen=True)
class Declaration:
    """One place that declares a quantization.

    file, key: where it stands (key empty for a whole file). value: the object that holds the settings, for
    hf_quant_config.json its inner ``quantization``. method: normalised name, None where the object does not tell.
    """

    file: str
    key: str
    value: Mapping[str, Any] = field(repr=False)
    method: str | None

    def path(self, *names: str) -> str:
        """Write where a setting stands, as a finding's key."""
        return ".".join(part for part in (self.key, *names) if part)


def method_of(value: Mapping[str, Any], default: str | None = None) -> str | None:
    """Return the method an object of settings names, normalised."""
    named = value.get("quant_method")
    if isinstance(named, str) and named:
        lower = named.lower()
        return ALIASES.get(lower, lower)
    if value.get("load_in_4bit") is True or value.get("load_in_8bit") is True:
        return "bitsandbytes"  # as transformers 5.23 reads configs of before there was quant_method
    return default


def declarations(config: Config | None, side: Mapping[str, Config]) -> tuple[Declaration, ...]:
    """Return every place that declares a quantization, the one that consumers read first in front."""
    found: list[Declaration] = []
    if config is not None:
        nested = config.nested_name
        for key in KEYS:
            for prefix, part in (("", config.value), (nested, config.text)):
                value = part.get(key)
                path = f"{prefix}.{key}" if prefix else key
                if isinstance(value, dict) and not any(value is other.value for other in found):
                    found.append(Declaration(config.file, path, value, method_of(value)))
    for file, method in SIDE_FILES.items():
        if file in side and side[file].readable:
            value, key = side[file].value, ""
            if file == "hf_quant_config.json" and isinstance(value.get("quantization"), dict):
                value, key = value["quantization"], "quantization"
            found.append(Declaration(file, key, value, method_of(value, method)))
    return tuple(found)
