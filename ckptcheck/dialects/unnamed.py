"""What consumers make of a quantization whose method is not named.

ModelOpt before 0.31 wrote hf_quant_config.json, which names a producer and an algorithm and no method. vLLM knows it by its
producer, and then four algorithms alone; SGLang knows it by the algorithm. Source: vLLM 0.32.0
`_normalize_quantization_config` (transformers_utils/model_arch_config_convertor.py) and `get_config` (config.py beside it);
SGLang 0.5.23 `_parse_modelopt_quant_config` and `_verify_quantization` (srt/configs/model_config.py); transformers 5.23
`supports_quant_method` (quantizers/auto.py). tests/dialects/test_unnamed.py asks the engines themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ckptcheck.dialects.modelopt_vllm import ALGORITHMS

Made = Literal["known", "plain", "refused"]
"""known: its method. plain: it takes the model for not quantized. refused: it stops at the config."""
BY_PRODUCER = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4")
"""Algorithms of ModelOpt that vLLM reads where the producer is all that names the method; others it refuses there."""


def algorithm(settings: Mapping[str, Any]) -> Any:
    """Return the quant_algo of a config, which may stand under ``quantization``."""
    inner = settings.get("quantization")
    return (inner if isinstance(inner, dict) else settings).get("quant_algo")


def by_vllm(settings: Mapping[str, Any]) -> Made:
    """Return what vLLM makes of a config without quant_method, or of a whole hf_quant_config.json."""
    producer, inner = settings.get("producer", {}), settings.get("quantization", {})
    if not isinstance(producer, dict) or not isinstance(settings.get("quant_method", ""), str):
        return "refused"
    named: Made = "known" if settings.get("quant_method") else "plain"
    if producer.get("name") != "modelopt" and not (isinstance(inner, dict) and "modelopt_quant_config" in inner):
        return named
    if not isinstance(inner, dict):
        return "refused"
    if inner.get("quant_algo") is None:
        return named
    return "known" if str(inner["quant_algo"]).upper() in BY_PRODUCER else "refused"


def by_sglang(settings: Mapping[str, Any]) -> Made:
    """Return what SGLang makes of a ``quantization_config`` without quant_method; it knows ModelOpt alone."""
    algo = algorithm(settings)
    if "quant_method" in settings or not isinstance(algo, str):
        return "refused"
    return "known" if algo in ("FP8", "MXFP8", "MIXED_PRECISION") or "FP4" in algo else "refused"


def by_transformers(settings: Mapping[str, Any]) -> Made:
    """Return what transformers makes of a ``quantization_config`` without quant_method; an empty text is a method it has not."""
    return "refused" if settings.get("quant_method") is None else "plain"


def naming_helps(settings: Mapping[str, Any]) -> bool:
    """Whether vLLM reads the algorithm where the method is named: what it never reads is not for want of a name."""
    algo = str(algorithm(settings)).upper()
    if algo != "MIXED_PRECISION":
        return algo in ALGORITHMS
    inner = settings.get("quantization")
    layers = (inner if isinstance(inner, dict) else settings).get("quantized_layers")
    return (
        isinstance(layers, dict)
        and bool(layers)
        and all(
            isinstance(layer, dict) and str(layer.get("quant_algo")).upper() in ALGORITHMS for layer in layers.values()
        )
    )
