"""The quantization schemes that weights can be brought into on the way to an engine, in the words of compressed-tensors.

Who decides what is packed is another matter: the engine reads the ignore list over its modules, and a trainer's own quantizer
may read it otherwise (ckptcheck/dialects).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcheck.dialects.judgement import judge_all
from ckptcheck.errors import CkptcheckError

TOKENS = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
"""Inputs: a scale for each token, found when it comes."""
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
"""Name → format, weights, inputs."""
GROUPS = (128, 64, 32)
"""Sizes of groups that engines have kernels for; the largest that divides all rows is taken."""
IGNORED = ("lm_head", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$")
"""What llm-compressor's examples leave alone: head and routers."""
QUANTIZERS = ("compressed-tensors", "slime")


@dataclass(frozen=True)
class Scheme:
    """A scheme for one model and one engine. config: its quantization_config. served: modules that the engine builds packed;
    sent: those that the trainer's quantizer packs. quantizer: whose that is.
    """

    name: str
    config: Mapping[str, Any]
    served: frozenset[str]
    sent: frozenset[str]
    quantizer: str


def scheme(
    name: str,
    shapes: Mapping[str, Sequence[int]],
    architecture: str | None,
    engine: str,
    *,
    ignore: Sequence[str] = IGNORED,
    quantizer: str = "compressed-tensors",
) -> Scheme:
    """Decide what is packed. shapes: of the trainer's weights by name. engine: vllm or sglang.

    Raises CkptcheckError for a scheme or a quantizer that is not known, a list that the engine or the quantizer refuses, or
    rows that no group divides.
    """
    if name not in SCHEMES:
        raise CkptcheckError(f"there is no scheme {name}", f"there are {', '.join(SCHEMES)}")
    if quantizer not in QUANTIZERS:
        raise CkptcheckError(f"there is no quantizer {quantizer}", f"there are {', '.join(QUANTIZERS)}")
    form, weights, inputs = SCHEMES[name]
    modules = [
        each.removesuffix(".weight") for each, shape in shapes.items() if each.endswith(".weight") and len(shape) == 2
    ]
    grouped = {**weights, "group_size": 32} if weights["strategy"] == "group" else dict(weights)
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": grouped,
                "input_activations": None if inputs is None else dict(inputs),
                "output_activations": None,
            }
        },
    }
    served = _packs(engine, architecture, modules, config)
    if weights["strategy"] == "group":
        widths = {shapes[f"{module}.weight"][1] for module in served}
        fitting = next((size for size in GROUPS if all(width % size == 0 for width in widths)), None)
        if fitting is None:
            raise CkptcheckError(f"no group of {', '.join(map(str, GROUPS))} divides rows of {min(widths)}")
        grouped["group_size"] = fitting
        if quantizer == "slime":  # it reads these of every list
            grouped.setdefault("symmetric", True)
    sent = served if quantizer == "compressed-tensors" else _packs(quantizer, architecture, modules, config)
    return Scheme(name, config, served, sent, quantizer)


def _packs(
    consumer: str, architecture: str | None, modules: Collection[str], config: Mapping[str, Any]
) -> frozenset[str]:
    judged = judge_all(consumer, architecture, modules, config)
    refused = next((verdict.error for _, verdict in judged.verdicts.values() if verdict.error), None)
    if (why := judged.error or judged.reason or refused) is not None:
        raise CkptcheckError(f"{consumer} does not read this list: {why}")
    return frozenset(module for module, (_, verdict) in judged.verdicts.items() if verdict.quantized)
