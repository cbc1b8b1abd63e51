"""The quantization schemes into which weights can be packed on their way to an engine, in the terms of compressed-tensors.

Engine and trainer decide separately which modules they pack: the engine applies the ignore list to its modules, and the
trainer's quantizer may read the list differently (ckptcheck/consumers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcheck.consumers.evaluation import evaluate_consumer
from ckptcheck.errors import CkptcheckError

TOKENS = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
"""The quantization of inputs: one scale for each token, computed when the token comes."""
SCHEMES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any] | None]] = {
    "w4a16": ("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}, None),
    "w8a8": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        {**TOKENS, "type": "int"},
    ),
    "fp8": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        {**TOKENS, "type": "float"},
    ),
}
"""Name of a scheme → its format, and the quantization arguments of weights and of inputs (None: not quantized)."""
GROUPS = (128, 64, 32)
"""Group sizes that engines have kernels for. A scheme gets the largest one that divides all rows."""
DEFAULT_IGNORE = ("lm_head", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$")
"""Modules that llm-compressor's examples do not quantize: the head and the routers."""
QUANTIZERS = ("compressed-tensors", "slime")


@dataclass(frozen=True)
class QuantizationScheme:
    """A scheme for one model and one engine."""

    name: str
    config: Mapping[str, Any]
    """The quantization_config of the checkpoint."""
    served: frozenset[str]
    """Modules that the engine builds packed."""
    sent: frozenset[str]
    """Modules that the trainer's quantizer packs."""
    quantizer: str
    """One of `QUANTIZERS`: it decides the modules of `sent`."""


def build_scheme(
    name: str,
    shapes: Mapping[str, Sequence[int]],
    architecture: str | None,
    engine: str,
    *,
    ignore: Sequence[str] = DEFAULT_IGNORE,
    quantizer: str = "compressed-tensors",
) -> QuantizationScheme:
    """Return the scheme with the modules that engine and trainer pack.

    shapes: name of each of the trainer's weights → its shape. engine: vllm or sglang. Raises CkptcheckError for an unknown
    scheme or quantizer, a list that the engine or the quantizer refuses, or rows that no group size divides.
    """
    if name not in SCHEMES:
        raise CkptcheckError(f"there is no scheme {name}", f"choose one of {', '.join(SCHEMES)}")
    if quantizer not in QUANTIZERS:
        raise CkptcheckError(f"there is no quantizer {quantizer}", f"choose one of {', '.join(QUANTIZERS)}")
    format_name, weights, inputs = SCHEMES[name]
    modules = [
        weight.removesuffix(".weight")
        for weight, shape in shapes.items()
        if weight.endswith(".weight") and len(shape) == 2
    ]
    weight_arguments = {**weights, "group_size": 32} if weights["strategy"] == "group" else dict(weights)
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weight_arguments,
                "input_activations": None if inputs is None else dict(inputs),
                "output_activations": None,
            }
        },
    }
    served = _packed_modules(engine, architecture, modules, config)
    if weights["strategy"] == "group":
        widths = {shapes[f"{module}.weight"][1] for module in served}
        group_size = next((size for size in GROUPS if all(width % size == 0 for width in widths)), None)
        if group_size is None:
            raise CkptcheckError(f"no group of {', '.join(map(str, GROUPS))} divides rows of {min(widths)}")
        weight_arguments["group_size"] = group_size
    sent = served if quantizer == "compressed-tensors" else _packed_modules(quantizer, architecture, modules, config)
    return QuantizationScheme(name, config, served, sent, quantizer)


def _packed_modules(
    consumer: str, architecture: str | None, modules: Collection[str], config: Mapping[str, Any]
) -> frozenset[str]:
    """Return the modules that a consumer packs by this config. Raises CkptcheckError if it cannot read the ignore list."""
    evaluation = evaluate_consumer(consumer, architecture, modules, config)
    module_error = next((verdict.error for _, verdict in evaluation.decisions.values() if verdict.error), None)
    if (reason := evaluation.error or evaluation.reason or module_error) is not None:
        raise CkptcheckError(f"{consumer} does not read this list: {reason}")
    return frozenset(module for module, (_, verdict) in evaluation.decisions.items() if verdict.quantized)
