"""How consumers read a quantization config without ``quant_method``.

ModelOpt before 0.31 wrote hf_quant_config.json with a producer and an algorithm, but no method. vLLM recognizes it by the
producer, and then accepts only four algorithms; SGLang recognizes it by the algorithm. Source: vLLM 0.32.0
`_normalize_quantization_config` (transformers_utils/model_arch_config_convertor.py) and `get_config` (config.py beside it);
SGLang 0.5.23 `_parse_modelopt_quant_config` and `_verify_quantization` (srt/configs/model_config.py); transformers 5.23
`supports_quant_method` (quantizers/auto.py). tests/consumers/test_undeclared_method.py asks the engines themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.consumers.base import UndeclaredOutcome
from ckptcheck.consumers.modelopt import VLLM_ALGORITHMS

BLOCK = "quantization_config"
"""The key of the config in config.json; the other one is ``compression_config``."""
BY_PRODUCER = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4")
"""Algorithms of ModelOpt that vLLM accepts if only the producer names the method; it refuses others there."""


def get_algorithm(settings: Mapping[str, Any]) -> Any:
    """Return the quant_algo of a config, which may stand under ``quantization``."""
    inner = settings.get("quantization")
    return (inner if isinstance(inner, dict) else settings).get("quant_algo")


def read_by_vllm(settings: Mapping[str, Any], key: str = BLOCK) -> UndeclaredOutcome:
    """Return how vLLM reads a config without quant_method, under any key, or a whole hf_quant_config.json."""
    producer, inner = settings.get("producer", {}), settings.get("quantization", {})
    if not isinstance(producer, dict) or not isinstance(settings.get("quant_method", ""), str):
        return "refused"
    without_modelopt: UndeclaredOutcome = "known" if settings.get("quant_method") else "plain"
    if producer.get("name") != "modelopt" and not (isinstance(inner, dict) and "modelopt_quant_config" in inner):
        return without_modelopt
    if not isinstance(inner, dict):
        return "refused"
    if inner.get("quant_algo") is None:
        return without_modelopt
    return "known" if str(inner["quant_algo"]).upper() in BY_PRODUCER else "refused"


def read_by_sglang(settings: Mapping[str, Any], key: str = BLOCK) -> UndeclaredOutcome:
    """Return how SGLang reads a config without quant_method. It looks for ModelOpt, only in ``quantization_config``."""
    algo = get_algorithm(settings)
    if not key.endswith(BLOCK) or "quant_method" in settings or not isinstance(algo, str):
        return "refused"
    return "known" if algo in ("FP8", "MXFP8", "MIXED_PRECISION") or "FP4" in algo else "refused"


def read_by_transformers(settings: Mapping[str, Any], key: str = BLOCK) -> UndeclaredOutcome | None:
    """Return how transformers reads a ``quantization_config`` without quant_method; it ignores other keys.

    An empty text is an unknown method to it, so it takes the model for unquantized.
    """
    if not key.endswith(BLOCK):
        return None
    return "refused" if settings.get("quant_method") is None else "plain"


def is_fixed_by_naming_method(settings: Mapping[str, Any]) -> bool:
    """Whether vLLM would accept the algorithm if the config named the method."""
    algo = str(get_algorithm(settings)).upper()
    if algo != "MIXED_PRECISION":
        return algo in VLLM_ALGORITHMS
    inner = settings.get("quantization")
    layers = (inner if isinstance(inner, dict) else settings).get("quantized_layers")
    return (
        isinstance(layers, dict)
        and bool(layers)
        and all(
            isinstance(layer, dict) and str(layer.get("quant_algo")).upper() in VLLM_ALGORITHMS
            for layer in layers.values()
        )
    )
