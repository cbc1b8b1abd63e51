"""Reads the schemes (bits, groups, activations) of a declaration into one form for all methods.

It uses the terms of compressed-tensors (quantization/quant_args.py, 0.20), which can express all other methods: the strategies
tensor, channel, group, block, tensor_group (groups below a global scale).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ckptcheck.checkpoint.quantization.declarations import Declaration


class QuantizationArgs(msgspec.Struct, frozen=True):
    """How weights or activations are quantized; a field is None where the config does not say."""

    bits: int | None = None
    """Bits of one number."""
    type: str | None = None
    """``int`` or ``float``."""
    strategy: str | None = None
    """What shares a scale: tensor, channel, group, block, tensor_group, token."""
    group_size: int | None = None
    """How many numbers along the input share a scale; -1 for all of them."""
    symmetric: bool = True
    """Whether there are no zero points."""
    dynamic: bool | str = False
    """True: scales are computed at run time; False: they are stored; "local": only the global scale is stored."""
    actorder: str | bool | None = None
    """The order in which activations were quantized (`desc_act` of GPTQ)."""
    block: tuple[int, int] | None = None
    """Rows and columns of a block."""


class Scheme(msgspec.Struct, frozen=True):
    """How the modules that match the targets are quantized."""

    key: str
    """JSON path of the scheme in the config."""
    targets: tuple[str, ...] = ()
    """Names, classes or patterns of modules, in the syntax of the method; () for all."""
    format: str | None = None
    """Name of the format in which weights are stored (`formats.FORMATS`)."""
    weights: QuantizationArgs | None = None
    """None: the modules are not quantized."""
    inputs: QuantizationArgs | None = None
    outputs: QuantizationArgs | None = None


def parse_schemes(declared: Declaration) -> tuple[Scheme, ...]:
    """Return the schemes of a declaration; () if its method is unknown or none of its schemes can be read."""
    reader = READERS.get(declared.method or "")
    return tuple(reader(declared)) if reader is not None else ()


def _compressed_tensors(declared: Declaration) -> Iterator[Scheme]:
    """config_groups: name → targets, weights, input_activations, output_activations, format."""
    groups = declared.value.get("config_groups")
    top = declared.value.get("format")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):
            continue
        form = group.get("format") or top
        yield Scheme(
            declared.key_path("config_groups", name),
            _names(group.get("targets")),
            form if isinstance(form, str) else None,
            parse_quantization_args(group.get("weights")),
            parse_quantization_args(group.get("input_activations")),
            parse_quantization_args(group.get("output_activations")),
        )


def parse_quantization_args(value: Any) -> QuantizationArgs | None:
    """Parse QuantizationArgs with the defaults of compressed-tensors; None if the value is no object."""
    if not isinstance(value, dict):
        return None
    group, strategy = _whole(value.get("group_size")), value.get("strategy")
    if not isinstance(strategy, str):
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    kind = value.get("type")
    actorder = value.get("actorder")
    dynamic = value.get("dynamic")
    return QuantizationArgs(
        bits=_bits(value.get("num_bits", 8)),
        type=kind.lower() if isinstance(kind, str) else "int",
        strategy=strategy.lower(),
        group_size=group,
        symmetric=value.get("symmetric") is not False,
        dynamic=dynamic.lower() if isinstance(dynamic, str) else dynamic is True,
        actorder=actorder if isinstance(actorder, (str, bool)) else None,
        block=_pair(value.get("block_structure")),
    )


def _fp8(declared: Declaration) -> Iterator[Scheme]:
    block = _pair(declared.value.get("weight_block_size"))
    static = declared.value.get("activation_scheme") == "static"
    yield Scheme(
        declared.key,
        format="fp8",
        weights=QuantizationArgs(8, "float", "block" if block else "tensor", block=block),
        inputs=QuantizationArgs(8, "float", "tensor", dynamic=not static),
    )


def _gptq(declared: Declaration) -> Iterator[Scheme]:
    """Yield the scheme of all modules, then one for each pattern of `dynamic`; `consumers.grouped_faults` matches them.

    The scheme has no weights if the pattern excludes modules (``-:``), or if the override is no object or sets another format.
    A value of the wrong type changes nothing: `override_config` of vLLM 0.32,
    model_executor/layers/quantization/utils/gptq_utils.py.
    """
    yield _gptq_scheme(declared.key, declared.value, ())
    dynamic = declared.value.get("dynamic")
    for pattern, override in dynamic.items() if isinstance(dynamic, dict) else ():
        key = declared.key_path("dynamic", pattern)
        if pattern.startswith("-:") or not isinstance(override, dict) or not GPTQ_OTHERS.isdisjoint(override):
            yield Scheme(key, (pattern,))
        else:
            overrides = {name: override[name] for name, kind in GPTQ_KINDS.items() if type(override.get(name)) is kind}
            yield _gptq_scheme(key, {**declared.value, **overrides}, (pattern,))


GPTQ_KINDS = {"bits": int, "group_size": int, "desc_act": bool, "sym": bool}
"""Setting that `dynamic` may override → its type."""
GPTQ_OTHERS = frozenset(("quant_method", "method", "checkpoint_format", "format"))
"""Settings that change the format, so that GPTQ's tables do not apply."""


def _gptq_scheme(key: str, value: Mapping[str, Any], targets: tuple[str, ...]) -> Scheme:
    group = _whole(value.get("group_size"))
    order = value.get("desc_act")
    weights = QuantizationArgs(
        _bits(value.get("bits")), "int", "channel" if group == -1 else "group", group, value.get("sym") is not False,
        actorder=order if isinstance(order, bool) else None,
    )  # fmt: skip
    return Scheme(key, targets, "gptq", weights)


def _awq(declared: Declaration) -> Iterator[Scheme]:
    value = declared.value
    group = _whole(value.get("group_size", value.get("q_group_size")))
    bits = _bits(value.get("bits", value.get("w_bit")))
    weights = QuantizationArgs(
        bits, "int", "channel" if group == -1 else "group", group, value.get("zero_point") is False
    )
    yield Scheme(declared.key, format="awq", weights=weights)


MODELOPT = {
    "FP8": Scheme(
        "", format="modelopt-fp8", weights=QuantizationArgs(8, "float", "tensor"), inputs=QuantizationArgs(8, "float", "tensor")
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(
        "", format="modelopt-fp8", weights=QuantizationArgs(8, "float", "channel"),
        inputs=QuantizationArgs(8, "float", "token", dynamic=True)
    ),
    "FP8_PB_WO": Scheme("", format="modelopt-fp8", weights=QuantizationArgs(8, "float", "block", block=(128, 128))),
    "NVFP4": Scheme(
        "", format="modelopt-nvfp4", weights=QuantizationArgs(4, "float", "tensor_group", 16),
        inputs=QuantizationArgs(4, "float", "tensor_group", 16, dynamic="local"),
    ),
    "W4A16_NVFP4": Scheme("", format="modelopt-nvfp4", weights=QuantizationArgs(4, "float", "tensor_group", 16)),
    "MXFP8": Scheme(
        "", format="mxfp8-quantized", weights=QuantizationArgs(8, "float", "group", 32),
        inputs=QuantizationArgs(8, "float", "group", 32, dynamic=True)
    ),
}  # fmt: skip
"""quant_algo → scheme. Source: vllm/model_executor/layers/quantization/modelopt.py LINEAR_ALGOS (0.32)."""
MODELOPT["FP8_BLOCK_SCALES"] = MODELOPT["FP8_PB_WO"]


def _modelopt(declared: Declaration) -> Iterator[Scheme]:
    """Yield the scheme of one algorithm for all modules, or with MIXED_PRECISION one for each of `quantized_layers`."""
    algo = algorithm(declared.value)
    layers = declared.value.get("quantized_layers")
    if algo == "MIXED_PRECISION":
        entries: dict[str, list[str]] = {}
        for name, entry in layers.items() if isinstance(layers, dict) else ():
            if isinstance(entry, dict) and (layer_algo := algorithm(entry)):
                entries.setdefault(layer_algo, []).append(name)
        for layer_algo, names in entries.items():
            if layer_algo in MODELOPT:
                template = MODELOPT[layer_algo]
                key = declared.key_path("quantized_layers", names[0])
                yield Scheme(key, tuple(names), template.format, template.weights, template.inputs)
    elif algo in MODELOPT:
        template = MODELOPT[algo]
        yield Scheme(declared.key_path("quant_algo"), (), template.format, template.weights, template.inputs)


def algorithm(value: Mapping[str, Any]) -> str:
    """Return ModelOpt's `quant_algo` in capitals, "" if there is none."""
    algo = value.get("quant_algo")
    return algo.upper() if isinstance(algo, str) else ""


def _mxfp4(declared: Declaration) -> Iterator[Scheme]:
    yield Scheme(declared.key, format="gpt-oss", weights=QuantizationArgs(4, "float", "group", 32))


def _bitsandbytes(declared: Declaration) -> Iterator[Scheme]:
    four = declared.value.get("load_in_4bit") is True
    key = declared.key_path("load_in_4bit" if four else "load_in_8bit")
    if four:
        yield Scheme(key, format="bitsandbytes-4bit", weights=QuantizationArgs(4, "float", "group"))
    else:
        yield Scheme(key, format="bitsandbytes-8bit", weights=QuantizationArgs(8, "int", "channel"))


QUARK_STRATEGY = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group", "per_token": "token"}


def _quark(declared: Declaration) -> Iterator[Scheme]:
    """Yield the scheme of global_quant_config, then one for each name pattern of layer_quant_config."""
    layers = declared.value.get("layer_quant_config")
    parts: list[tuple[str, tuple[str, ...], Any]] = [
        ("global_quant_config", (), declared.value.get("global_quant_config"))
    ]
    parts += [
        (f"layer_quant_config.{name}", (name,), part)
        for name, part in (layers.items() if isinstance(layers, dict) else ())
    ]
    for key, targets, part in parts:
        if isinstance(part, dict):
            weights = _quark_args(part.get("weight"))
            form = _quark_format(part.get("weight"), weights)
            yield Scheme(declared.key_path(key), targets, form, weights, _quark_args(part.get("input_tensors")))


def _quark_format(value: Any, weights: QuantizationArgs | None) -> str:
    """Return the format of Quark's weights; "quark", which only fixes dtypes, if the tables have no shapes for it."""
    if weights is None or not isinstance(value, dict):
        return "quark"
    dtype, strategy = value.get("dtype"), weights.strategy
    if dtype == "fp8_e4m3" and strategy in ("tensor", "channel"):
        return "quark-fp8"
    if dtype in ("int4", "uint4") and strategy == "group" and weights.group_size:
        return "quark-int4"
    is_mx = strategy == "group" and weights.group_size == 32 and value.get("scale_format") == "e8m0"
    return "quark-mxfp4" if dtype == "fp4" and is_mx else "quark"


def _quark_args(value: Any) -> QuantizationArgs | None:
    if not isinstance(value, dict):
        return None
    dtype = str(value.get("dtype", ""))
    bits = next((width for width in (4, 6, 8) if str(width) in dtype[:5]), None)
    return QuantizationArgs(
        bits,
        "int" if "int" in dtype else "float",
        QUARK_STRATEGY.get(str(value.get("qscheme"))),
        _whole(value.get("group_size")),
        value.get("symmetric") is not False,
        value.get("is_dynamic") is True,
    )


def _auto_round(declared: Declaration) -> Iterator[Scheme]:
    """Yield the scheme of all modules, then the schemes that `extra_config` gives modules by name or pattern.

    Yields nothing if AutoRound packs some modules in a way that the tables lack. Source: `get_layer_config` of
    auto_round/inference/convert_model.py (0.16).
    """
    value, extra = declared.value, declared.value.get("extra_config")
    own = {name: part for name, part in extra.items() if isinstance(part, dict)} if isinstance(extra, dict) else {}
    schemes = [_auto_round_scheme(declared.key, value, ())]
    for name, part in own.items():
        schemes.append(_auto_round_scheme(declared.key_path("extra_config", name), {**value, **part}, (name,)))
    if all(scheme.weights is None or scheme.format is not None for scheme in schemes):
        yield from schemes


def _auto_round_scheme(key: str, value: Mapping[str, Any], targets: tuple[str, ...]) -> Scheme:
    """Return the scheme of modules: without weights if they stay unquantized, without a format if it is unknown."""
    bits, kind = value.get("bits", 4), value.get("data_type", "int")
    if type(bits) is int and bits >= 16:
        return Scheme(key, targets)
    packing = value.get("packing_format", "auto_round:gptq")  # transformers' default
    form = None
    if kind == "int" and packing in AUTO_ROUND_PACKINGS:
        form = "auto-round-awq" if packing.endswith("awq") else "auto-round-gptq"
    elif kind == "mx_fp" and packing == "auto_round:llm_compressor":
        form = {4: "mxfp4-pack-quantized", 8: "mxfp8-quantized"}.get(_bits(bits) or 0)
    group = _whole(value.get("group_size", 128))
    symmetric = value.get("sym") is not False
    weights = QuantizationArgs(
        _bits(bits), "int" if kind == "int" else "float", "channel" if group == -1 else "group", group, symmetric
    )
    return Scheme(key, targets, form, weights)


AUTO_ROUND_PACKINGS = ("auto_round:gptq", "auto_round:auto_gptq", "auto_round:awq", "auto_round:auto_awq")
"""Ways in which AutoRound packs integers: GPTQ's and AWQ's."""


READERS = {
    "compressed-tensors": _compressed_tensors, "fp8": _fp8, "gptq": _gptq, "awq": _awq, "modelopt": _modelopt,
    "mxfp4": _mxfp4, "bitsandbytes": _bitsandbytes, "quark": _quark, "auto-round": _auto_round,
}  # fmt: skip


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _bits(value: Any) -> int | None:
    return value if type(value) is int and 1 <= value <= 64 else None


def _names(value: Any) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value):
        return value[0], value[1]
    return None
