"""The formats of quantized weights, as tables: which tensors a module has, their dtypes and shapes.

A shape is written in the terms of the format papers: O and I are the rows and columns of the weight that the tensors stand
for, b its bits, g the group size, r and c the rows and columns of a block. ``I*b/32`` is rounded up. Weights of experts that
share a tensor have one more dimension in front, and so have their companions.

Sources: compressed_tensors/compressors and quantization/lifecycle/initialize.py (0.20); vllm/model_executor/layers/
quantization fp8.py, auto_gptq.py, auto_awq.py, modelopt.py, quark/ (0.32); transformers/integrations finegrained_fp8.py,
mxfp4.py, bitsandbytes.py (5.23).
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT = ("F32", "BF16", "F16", "F64")
E8M0 = ("U8", "F8_E8M0")
ONE = ("", "1")
"""A single number, stored with no dimension or with one of one."""

Shape = str
"""Dimensions, separated by spaces: ``O I/g``."""


@dataclass(frozen=True)
class Companion:
    """A tensor beside the weight.

    dtypes: those it may have. shapes: those it may have, none to leave it unchecked. when: the case in which it belongs to
    the module (a name in `faults.CASES`), empty for always. optional: it may be there or not.
    """

    role: str
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...] = ()
    when: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Format:
    """How a weight is stored.

    weight: role of the tensor with the numbers, its dtypes, and its shape. needs: who cannot do without the companions, as a
    clause. twins: role → the name under which other methods store the same.
    """

    name: str
    weight: str
    dtypes: tuple[str, ...]
    shape: Shape
    companions: tuple[Companion, ...]
    needs: str
    twins: tuple[tuple[str, str], ...] = ()


SCALE = (
    Companion("weight_scale", FLOAT, ONE, "tensor"),
    Companion("weight_scale", FLOAT, ("O 1", "O"), "channel"),
    Companion("weight_scale", FLOAT, ("O I/g",), "group"),
    Companion("weight_scale", FLOAT, ("O/r I/c", "O/r 1 I/c 1"), "block"),
)
INPUT = (
    Companion("input_scale", FLOAT, ONE, "static input"),
    Companion("input_zero_point", ("I8", "F8_E4M3"), ONE, "static asymmetric input"),
)
UNFILLED = "transformers, vLLM and SGLang compute with uninitialised memory in its place"
RAW = "transformers 5.23 loads the raw numbers without a word, and vLLM scales them by uninitialised memory"

FORMATS = {
    form.name: form
    for form in (
        Format(
            "pack-quantized", "weight_packed", ("I32",), "O I*b/32",
            (
                *(companion for companion in SCALE if companion.when != "block"),
                Companion("weight_shape", ("I64", "I32"), (), optional=True),  # transformers and vLLM do without
                Companion("weight_zero_point", ("I32",), ("O*b/32 I/g",), "asymmetric group"),
                Companion("weight_zero_point", ("I32",), ("O*b/32 1",), "asymmetric channel"),
                Companion("weight_zero_point", ("I8",), ONE, "asymmetric tensor"),
                *INPUT,
                Companion("input_global_scale", FLOAT, ONE, "static global input"),
            ),
            UNFILLED,
        ),
        Format(
            "int-quantized", "weight", ("I8",), "O I",
            (
                *SCALE,
                Companion("weight_zero_point", ("I8",), ONE, "asymmetric tensor"),
                Companion("weight_zero_point", ("I8",), ("O 1", "O"), "asymmetric channel"),
                Companion("weight_zero_point", ("I8",), ("O I/g",), "asymmetric group"),
                *INPUT,
            ),
            UNFILLED,
        ),
        Format(
            "float-quantized", "weight", ("F8_E4M3",), "O I", (*SCALE, *INPUT), UNFILLED,
            (("weight_scale", "weight_scale_inv"),),
        ),
        Format(
            "nvfp4-pack-quantized", "weight_packed", ("U8",), "O I/2",
            (
                Companion("weight_scale", ("F8_E4M3",), ("O I/16",)),
                Companion("weight_global_scale", FLOAT, ONE),
                Companion("input_global_scale", FLOAT, ONE, "static global input"),
            ),
            UNFILLED,
            (("weight_global_scale", "weight_scale_2"), ("input_global_scale", "input_scale")),
        ),
        Format(
            "mxfp4-pack-quantized", "weight_packed", ("U8",), "O I/2",
            (Companion("weight_scale", E8M0, ("O I/32",)),), UNFILLED,
        ),
        Format(
            "mxfp6-pack-quantized", "weight_packed", ("U8",), "O I*3/4",
            (Companion("weight_scale", E8M0, ("O I/32",)),), UNFILLED,
        ),
        Format("mxfp8-quantized", "weight", ("F8_E4M3",), "O I", (Companion("weight_scale", E8M0, ("O I/32",)),), UNFILLED),
        Format(
            "fp8-block", "weight", ("F8_E4M3",), "O I",
            (Companion("weight_scale_inv", (*FLOAT, *E8M0), ("O/r I/c",)),), RAW, (("weight_scale_inv", "weight_scale"),),
        ),
        Format(
            "fp8-mxfp4-experts", "weight", ("I8", "U8", "F4"), "O I/2",
            (Companion("weight_scale_inv", E8M0, ("O I/32",)),), RAW,
        ),
        Format(
            "fp8-tensor", "weight", ("F8_E4M3",), "O I",
            (
                Companion("weight_scale", FLOAT, (*ONE, "1 1")),
                Companion("input_scale", FLOAT, ONE, "static input"),
            ),
            RAW,
        ),
        Format(
            "gptq", "qweight", ("I32",), "I*b/32 O",
            (
                Companion("qzeros", ("I32",), ("I/g O*b/32",)),
                Companion("scales", FLOAT, ("I/g O",)),
                Companion("g_idx", ("I32",), ("I",), "activation order"),
                Companion("g_idx", ("I32",), ("I",), "no activation order", optional=True),
            ),
            "vLLM computes with uninitialised memory, and GPTQModel with zeros",
        ),
        Format(
            "awq", "qweight", ("I32",), "I O*b/32",
            (
                Companion("qzeros", ("I32",), ("I/g O*b/32",), "asymmetric"),
                Companion("qzeros", ("I32",), ("I/g O*b/32",), "symmetric", optional=True),
                Companion("scales", FLOAT, ("I/g O",)),
            ),
            UNFILLED,
        ),
        Format(
            "modelopt-fp8", "weight", ("F8_E4M3",), "O I",
            (
                *(companion for companion in SCALE if companion.when != "group"),
                Companion("input_scale", FLOAT, ONE, "static input"),
                Companion("input_scale", FLOAT, ONE, "dynamic input", optional=True),
            ),
            UNFILLED,
            (("weight_scale", "weight_scale_inv"),),
        ),
        Format(
            "modelopt-nvfp4", "weight", ("U8",), "O I/2",
            (
                Companion("weight_scale", ("F8_E4M3",), ("O I/16",)),
                Companion("weight_scale_2", FLOAT, ONE),
                Companion("input_scale", FLOAT, ONE, "static global input"),
                Companion("input_scale", FLOAT, ONE, "no input", optional=True),
            ),
            "vLLM divides by what is not there: NaN, or logits that depend on uninitialised memory",
            (("weight_scale_2", "weight_global_scale"), ("input_scale", "input_global_scale")),
        ),
        Format(
            "gpt-oss", "weight_blocks", ("U8",), "O I/32 16",
            (Companion("weight_scales", E8M0, ("O I/32",)),),
            "transformers, vLLM and SGLang cannot unpack the weight",
        ),
        Format(
            "bitsandbytes-4bit", "weight", ("U8", "F32", "F16", "BF16"), "",
            (
                Companion("absmax", ("F32", "U8")),
                Companion("quant_map", ("F32",), ("16",)),
                Companion("quant_state", ("U8",)),
                Companion("nested_absmax", ("F32",), (), optional=True),
                Companion("nested_quant_map", ("F32",), ("256",), optional=True),
            ),
            "bitsandbytes cannot unpack the weight",
        ),
        Format(
            "bitsandbytes-8bit", "weight", ("I8",), "O I",
            (
                Companion("SCB", ("F32", "F16", "BF16"), ("O",)),
                Companion("weight_format", ("U8",), optional=True),
            ),
            "transformers computes with raw integers",
        ),
        Format(
            "quark", "weight", ("F8_E4M3", "I8", "U8", "I32"), "",
            (
                Companion("weight_scale", (*FLOAT, *E8M0, "F8_E4M3")),
                Companion("weight_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
                Companion("weight_scale_2", FLOAT, ONE, optional=True),
                Companion("input_scale", FLOAT, (), optional=True),
                Companion("input_scale_2", FLOAT, ONE, optional=True),
                Companion("input_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
            ),
            UNFILLED,
        ),
    )
}  # fmt: skip
"""Name → format."""
FORMATS["naive-quantized"] = FORMATS["int-quantized"]
"""What compressed-tensors calls weights of 8 bits of either kind; `faults` takes the one of the scheme's type."""
