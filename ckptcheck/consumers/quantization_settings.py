"""The settings of a quantization config that the library of its method refuses, whatever the weights are.

Sources: compressed_tensors/quantization/quant_args.py, quant_scheme.py and quant_config.py (0.20; vLLM 0.32 and SGLang parse
weights and activations with the same classes), `BitsAndBytesConfig` and `AutoRoundConfig` of transformers 5.24.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Fault = tuple[str, str]
"""The path of a setting below the quantization config, and what is wrong with it, as the end of a sentence."""

STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
FORMATS = (
    "dense", "sparse-bitmask", "sparse-24-bitmask", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized",
    "marlin-24", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
STATES = ("initialized", "calibration", "frozen", "compressed", "decompressed")
ARGUMENTS = (
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "scale_dtype",
    "zp_dtype", "observer", "observer_kwargs", "is_mx",
)  # fmt: skip
"""Keys that describe weights or activations; `is_mx` was one until 0.15."""
PARTS = ("weights", "input_activations", "output_activations")
GROUP = ("targets", *PARTS, "format")
KINDS_AND_GROUPS = {
    "nvfp4-pack-quantized": ("float", 16),
    "mxfp4-pack-quantized": ("float", 32),
    "mxfp8-quantized": ("float", 32),
    "float-quantized": ("float", None),
}
"""Format → the number type of its activations, and how many numbers of a weight share a scale, if the format fixes them.

int-quantized names the weights alone: llm-compressor's W4AFP8 has activations of FP8 beside it."""
FLOAT_BITS = (4, 6, 8)
COMPUTED = ("float32", "float", "float16", "half", "bfloat16", "float64", "double")
TORCH_DTYPES = ("float16", "float32", "int8", "uint8", "float64", "bfloat16")
QUARK_KEYS = ("exclude", "global_quant_config", "layer_quant_config", "layer_type_quant_config")
"""Keys that `QConfig.from_dict` of Quark 0.13 reads without a default."""
ROUNDED_BITS = (2, 3, 4, 5, 6, 7, 8)
AWQ_VERSIONS = ("gemm", "gemv", "gemv_fast", "llm-awq", "marlin", "exllama", "ipex")
"""Versions of AWQ that GPTQModel 7.7, or its predecessor AutoAWQ, knows."""
TORCH_NUMBER = re.compile(
    r"float|double|half|int|long|short|bool|cfloat|cdouble|chalf"
    r"|(float|bfloat|int|uint|qint|quint|complex|bits?)\d[a-z0-9_]*"
)
"""Names of number types as in torch 2.13: `uint8`, `float8_e4m3fn`, but not "nf4", "fp8" or "group"."""


def list_refused_settings(
    method: str | None, settings: Mapping[str, Any], *, stores_zero_points: bool = False
) -> Iterator[Fault]:
    """Yield the settings of a quantization config that the library of its method refuses.

    stores_zero_points: whether each quantized module stores zero points. GPTQModel reads them even if AWQ's `zero_point` is
    false: AutoRound and GPTQModel write false for symmetric weights, whose zero points are all 8.
    """
    if method == "compressed-tensors":
        yield from _compressed_tensors(settings)
    elif method == "bitsandbytes":
        yield from _bitsandbytes(settings)
    elif method == "awq":
        points, version = settings.get("zero_point", True), settings.get("version", "gemm")
        if points is not True and str(version).lower() == "gemm" and not stores_zero_points:
            yield (
                "zero_point",
                f"is {_write(points)} and qzeros are missing, and weights of the version gemm always have zero points",
            )
        if str(version).lower() not in AWQ_VERSIONS:
            yield "version", f"is {_write(version)}, and none of {', '.join(AWQ_VERSIONS)}"
    elif method == "quark" and isinstance(settings.get("export"), dict):  # without it, it is Quark's older form
        yield from ((key, "is missing") for key in QUARK_KEYS if key not in settings)
        if "global_quant_config" in settings and not isinstance(settings["global_quant_config"], dict):
            yield "global_quant_config", f"is {_write(settings['global_quant_config'])}, and no object"
    elif method == "torchao":
        if not settings.get("quant_type"):
            yield "quant_type", "is missing" if "quant_type" not in settings else f"is {_write(settings['quant_type'])}"
    elif method == "auto-round":
        bits, size = settings.get("bits", 4), settings.get("group_size", 128)
        if bits not in ROUNDED_BITS:
            yield "bits", f"is {_write(bits)}, and AutoRound has {ROUNDED_BITS[0]} to {ROUNDED_BITS[-1]}"
        if _is_whole(size) and size <= 0 and size != -1:
            yield "group_size", f"is {size}, and neither -1 nor a number above 0"


def list_unread_settings(settings: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the settings of compressed-tensors with which a loader does not read stored quantized weights as quantized.

    Observed with transformers 5.23, which builds modules by `quantization_status` and `config_groups`, and unpacks by `format`.
    """
    state = settings.get("quantization_status", STATES[0])
    if state in STATES and state != "compressed":
        told = f"is {state}" if "quantization_status" in settings else "is missing"
        yield (
            "quantization_status",
            f"{told}, and the weights are stored compressed: transformers builds the modules for weights that are still to be "
            "quantized, and fills their weights or zero points with random numbers; vLLM and SGLang do not read it",
        )
    groups = settings.get("config_groups")
    if groups is None:
        yield (
            "config_groups",
            "is missing, so that no module is built quantized: transformers, vLLM and SGLang read no scale",
        )
        return
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict) or (group.get("format") or settings.get("format")) != "int-quantized":
            continue
        if isinstance(group.get("weights"), dict) and group.get("input_activations") is None:
            yield (
                f"config_groups.{name}.input_activations",
                "is missing, and the format int-quantized is for weights and activations: transformers stops at the first token",
            )
    if settings.get("format") in (None, "dense") and not any(
        isinstance(group, dict) and group.get("format")
        for group in (groups.values() if isinstance(groups, dict) else ())
    ):
        yield (
            "format",
            f"is {'missing' if settings.get('format') is None else 'dense'}, and no group has one: transformers refuses fused "
            "experts, and vLLM does not unpack",
        )


def _compressed_tensors(settings: Mapping[str, Any]) -> Iterator[Fault]:
    groups = settings.get("config_groups")
    if isinstance(groups, dict):
        for name, group in groups.items():
            if isinstance(group, dict):
                yield from _group(f"config_groups.{name}", group, group.get("format") or settings.get("format"))
            elif not isinstance(group, list):
                yield f"config_groups.{name}", f"is {_write(group)}, and no object"
    if groups == {}:
        yield "config_groups", "has no group, so that no module is built quantized"
    state = settings.get("quantization_status", STATES[0])
    if state not in STATES:
        yield "quantization_status", f"is {_write(state)}, and none of {', '.join(STATES)}"
    ignore = settings.get("ignore")
    if ignore is not None and not (isinstance(ignore, list) and all(isinstance(each, str) for each in ignore)):
        yield "ignore", "is no list of texts"
    if settings.get("format", FORMATS[0]) not in (*FORMATS, "mixed-precision", "fakequant"):
        yield "format", f"is {_write(settings['format'])}, and no format of compressed-tensors"
    ratio = settings.get("global_compression_ratio")
    if ratio is not None and not isinstance(ratio, (int, float)):
        yield "global_compression_ratio", f"is {_write(ratio)}, and no number"
    if settings.get("kv_cache_scheme") is not None:
        yield from _arguments("kv_cache_scheme", settings["kv_cache_scheme"])


def _group(path: str, group: Mapping[str, Any], stored_as: Any) -> Iterator[Fault]:
    for key in group:
        if key not in GROUP:
            yield f"{path}.{key}", "is not a setting of a group"
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        yield f"{path}.targets", "is no list of texts"
    form = group.get("format")
    if form is not None and form not in FORMATS:
        yield f"{path}.format", f"is {_write(form)}, and no format of a group"
    for part in PARTS:
        if group.get(part) is not None:
            yield from _arguments(f"{path}.{part}", group[part])
    weights, inputs = group.get("weights"), group.get("input_activations")
    if isinstance(weights, dict) and weights.get("dynamic"):
        yield f"{path}.weights.dynamic", "is set, and scales of weights are never computed at run time, but stored"
    for part in PARTS[1:]:
        if isinstance(group.get(part), dict) and group[part].get("actorder"):
            yield f"{path}.{part}.actorder", "is set, and only weights have an order"
    kind, size = KINDS_AND_GROUPS.get(stored_as, (None, None)) if isinstance(stored_as, str) else (None, None)
    if isinstance(weights, dict) and size is not None and weights.get("group_size", size) != size:
        yield f"{path}.weights.group_size", f"is {_write(weights['group_size'])}, and {stored_as} has groups of {size}"
    if isinstance(inputs, dict) and kind is not None and inputs.get("type", "int") != kind:
        yield (
            f"{path}.input_activations.type",
            f"is {_write(inputs.get('type', 'int'))}, and that of {stored_as} is {kind}",
        )
    if isinstance(inputs, dict) and isinstance(inputs.get("strategy"), str):
        strategy = inputs["strategy"].lower()
        if strategy in ("channel", "block"):
            yield f"{path}.input_activations.strategy", f"is {strategy}, which activations cannot have"


def _arguments(path: str, found: Any) -> Iterator[Fault]:
    if not isinstance(found, dict):
        yield path, f"is {_write(found)}, and no object"
        return
    for key in found:
        if key not in ARGUMENTS:
            yield f"{path}.{key}", "is not a setting of weights or activations"
    odd = [
        (key, f"is {_write(found[key])}, and {kind}")
        for key, (is_valid, kind) in CHECKS.items()
        if key in found and not is_valid(found[key])
    ]
    yield from ((f"{path}.{key}", reason) for key, reason in odd)
    if not odd:
        yield from _strategy(path, found)


def _strategy(path: str, found: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the settings that contradict the strategy, by `validate_model_after`."""
    size, strategy, dynamic = found.get("group_size"), found.get("strategy"), found.get("dynamic", False)
    if strategy is None:
        strategy = "tensor" if size is None else "group" if size > 0 else "channel"
    strategy = strategy.lower()
    if (
        str(found.get("type")).lower() == "float"
        and found.get("num_bits", 8) not in FLOAT_BITS
        and not found.get("zp_dtype")
    ):
        yield f"{path}.num_bits", f"is {found['num_bits']}, and floats have 4, 6 or 8"
    if (
        str(found.get("type")).lower() == "float"
        and found.get("num_bits") in (4, 6)
        and found.get("symmetric") is False
    ):
        yield f"{path}.symmetric", "is false, and floats of 4 and 6 bits are symmetric"
    if strategy == "token" and not dynamic:
        yield f"{path}.dynamic", "is not true, and scales for each token are computed at run time"
    if strategy in ("group", "tensor_group") and (size is None or size <= 0):
        yield f"{path}.group_size", f"is {_write(size)}, and the strategy {strategy} needs a number above 0"
    if size is not None and size > 0 and strategy not in ("group", "tensor_group"):
        yield f"{path}.group_size", f"is {size}, and the strategy {strategy} has no groups"
    if (strategy == "block") != (found.get("block_structure") is not None):
        yield f"{path}.block_structure", "and the strategy block need each other"
    if dynamic and strategy not in ("token", "tensor", "tensor_group", "group"):
        yield f"{path}.dynamic", f"is {_write(dynamic)}, which the strategy {strategy} cannot be"
    elif isinstance(dynamic, str) and dynamic.lower() == "local" and strategy != "tensor_group":
        yield f"{path}.dynamic", "is local, which only the strategy tensor_group can be"


def _bitsandbytes(settings: Mapping[str, Any]) -> Iterator[Fault]:
    for key in (
        "load_in_4bit", "load_in_8bit", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_use_double_quant",
    ):  # fmt: skip
        if key in settings and not isinstance(settings[key], bool):
            yield key, f"is {_write(settings[key])}, and neither true nor false"
    if settings.get("load_in_4bit") is True and settings.get("load_in_8bit") is True:
        yield "load_in_8bit", "and load_in_4bit are both true"
    if "llm_int8_threshold" in settings and not isinstance(settings["llm_int8_threshold"], float):
        yield "llm_int8_threshold", f"is {_write(settings['llm_int8_threshold'])}, and no number with a decimal point"
    skipped = settings.get("llm_int8_skip_modules")
    if skipped is not None and not isinstance(skipped, list):
        yield "llm_int8_skip_modules", f"is {_write(skipped)}, and no list"
    kind = settings.get("bnb_4bit_quant_type")
    if "bnb_4bit_quant_type" in settings and (
        not isinstance(kind, str) or (settings.get("load_in_4bit") is True and kind not in ("nf4", "fp4"))
    ):
        yield "bnb_4bit_quant_type", f"is {_write(kind)}, and neither nf4 nor fp4"
    computed = settings.get("bnb_4bit_compute_dtype")
    if computed is not None and str(computed).removeprefix("torch.") not in COMPUTED:
        yield "bnb_4bit_compute_dtype", f"is {_write(computed)}, and no dtype that torch computes in"
    storage = settings.get("bnb_4bit_quant_storage")
    if storage is not None and storage not in TORCH_DTYPES:
        yield "bnb_4bit_quant_storage", f"is {_write(storage)}, and none of {', '.join(TORCH_DTYPES)}"


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_torch_dtype(value: Any) -> bool:
    return value is None or (
        isinstance(value, str) and TORCH_NUMBER.fullmatch(value.removeprefix("torch.")) is not None
    )


def _is_block(value: Any) -> bool:
    if isinstance(value, str):
        return len(parts := value.split("x")) == 2 and all(part.isdigit() and int(part) > 0 for part in parts)
    return value is None or (
        isinstance(value, list) and len(value) == 2 and all(_is_whole(each) and each > 0 for each in value)
    )


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_bits": (_is_whole, "no whole number"),
    "type": (lambda value: isinstance(value, str) and value.lower() in ("int", "float"), "neither int nor float"),
    "symmetric": (lambda value: isinstance(value, bool), "neither true nor false"),
    "group_size": (
        lambda value: value is None or (_is_whole(value) and (value > 0 or value == -1)),
        "neither null, -1 nor a number above 0",
    ),
    "strategy": (
        lambda value: value is None or (isinstance(value, str) and value.lower() in STRATEGIES),
        f"none of {', '.join(STRATEGIES)}",
    ),
    "block_structure": (_is_block, "no pair of numbers above 0"),
    "dynamic": (
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value.lower() == "local"),
        "neither true, false nor local",
    ),
    "scale_dtype": (_is_torch_dtype, "no dtype of torch"),
    "zp_dtype": (_is_torch_dtype, "no dtype of torch"),
    "observer": (lambda value: value is None or isinstance(value, str), "no text"),
    "observer_kwargs": (lambda value: value is None or isinstance(value, dict), "no object"),
}
"""Setting → a test of its value, and the message for a refused one. QNT031 judges `actorder` itself."""


def _write(value: Any) -> str:
    return repr(value)[:40]
