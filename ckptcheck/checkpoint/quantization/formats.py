"""Tables of the formats of quantized weights: the tensors of a module, their dtypes and shapes.

A shape uses the symbols of the format papers: O and I are the rows and columns of the unquantized weight, b its bits, g the
group size, r and c the rows and columns of a block. ``I*b/32`` is rounded up. Fused experts' weights and their companions have
one more leading dimension.

Sources: compressed_tensors/compressors and quantization/lifecycle/initialize.py (0.20); vllm/model_executor/layers/
quantization fp8.py, auto_gptq.py, auto_awq.py, modelopt.py, quark/ (0.32); transformers/integrations finegrained_fp8.py,
mxfp4.py, bitsandbytes.py (5.23).
"""

from __future__ import annotations

import msgspec
from msgspec import structs

FLOAT = ("F32", "BF16", "F16", "F64")
E8M0 = ("U8", "F8_E8M0")
ONE = ("", "1")
"""Shapes of a single number: no dimension, or one dimension of 1."""

Shape = str
"""Dimensions, separated by spaces: ``O I/g``."""


class Companion(msgspec.Struct, frozen=True):
    """A tensor that accompanies the weight."""

    role: str
    """Its name within the module."""
    dtypes: tuple[str, ...]
    """The dtypes it may have."""
    shapes: tuple[Shape, ...] = ()
    """The shapes it may have; () to check none."""
    when: str = ""
    """The condition under which it belongs to the module (`faults.CASES`, or "quantized scales"); empty for always."""
    optional: bool = False
    """Whether it may be absent."""
    needs: str = ""
    """The programs that need it, if they differ from `WeightFormat.needs`."""


class WeightFormat(msgspec.Struct, frozen=True):
    """A format of quantized weights."""

    name: str
    weight: str
    """Role of the tensor that holds the numbers."""
    dtypes: tuple[str, ...]
    """The dtypes that this tensor may have."""
    shape: Shape
    """Its shape; empty if the rows and columns do not follow from it."""
    companions: tuple[Companion, ...]
    needs: str
    """The programs that need the companions, and what happens without them, as a clause."""
    twins: tuple[tuple[str, str], ...] = ()
    """(role, name of the same tensor in other methods)."""
    whole: int = 1
    """The columns of the unquantized weight are a multiple of this."""


SCALE = (
    Companion("weight_scale", FLOAT, ONE, "tensor"),
    Companion("weight_scale", FLOAT, ("O 1",), "channel"),
    Companion("weight_scale", FLOAT, ("O I/g",), "group"),
    Companion("weight_scale", FLOAT, ("O/r I/c", "O/r 1 I/c 1"), "block"),
)
OUTPUT = "transformers 5.23 and compressed-tensors multiply the outputs by uninitialised memory in its place"
INPUT = (
    Companion("input_scale", FLOAT, ONE, "static input"),
    Companion("input_zero_point", ("I8", "F8_E4M3"), ONE, "static asymmetric input"),
    Companion("output_scale", FLOAT, ONE, "static output", needs=OUTPUT),
)
ASYMMETRIC = Companion(
    "weight_zero_point",
    ("I8", "U8", "F8_E4M3"),
    (),
    "asymmetric",
    needs="transformers 5.23 and compressed-tensors subtract uninitialised memory in its place",
)
UNFILLED = "transformers, vLLM and SGLang compute with uninitialised memory in its place"
UNPACKED = "transformers 5.23 and compressed-tensors stop, for they unpack the weight to that shape; vLLM and SGLang do without"
RAW = "transformers 5.23 loads the raw numbers without a word, and vLLM scales them by uninitialised memory"

FORMATS = {
    form.name: form
    for form in (
        WeightFormat(
            "pack-quantized", "weight_packed", ("I32",), "O I*b/32",
            (
                *(companion for companion in SCALE if companion.when != "block"),
                Companion("weight_shape", ("I64", "I32"), (), needs=UNPACKED),
                Companion("weight_zero_point", ("I32",), ("O*b/32 I/g",), "asymmetric group"),
                Companion("weight_zero_point", ("I32",), ("O*b/32 1",), "asymmetric channel"),
                Companion("weight_zero_point", ("I8",), ONE, "asymmetric tensor"),
                *INPUT,
                Companion("input_global_scale", FLOAT, ONE, "static global input"),
            ),
            UNFILLED,
        ),
        WeightFormat(
            "int-quantized", "weight", ("I8",), "O I",
            (
                *SCALE,
                Companion("weight_zero_point", ("I8",), ONE, "asymmetric tensor"),
                Companion("weight_zero_point", ("I8",), ("O 1",), "asymmetric channel"),
                Companion("weight_zero_point", ("I8",), ("O I/g",), "asymmetric group"),
                *INPUT,
            ),
            UNFILLED,
        ),
        WeightFormat(
            "float-quantized", "weight", ("F8_E4M3",), "O I", (*SCALE, *INPUT, ASYMMETRIC), UNFILLED,
            (("weight_scale", "weight_scale_inv"),),
        ),
        WeightFormat(
            "nvfp4-pack-quantized", "weight_packed", ("U8",), "O I/2",
            (
                Companion("weight_scale", ("F8_E4M3",), ("O I/16",)),
                Companion("weight_global_scale", FLOAT, ONE),
                Companion("input_global_scale", FLOAT, ONE, "static global input"),
                ASYMMETRIC,
            ),
            UNFILLED,
            (("weight_global_scale", "weight_scale_2"), ("input_global_scale", "input_scale")), 16,
        ),
        WeightFormat(
            "mxfp4-pack-quantized", "weight_packed", ("U8",), "O I/2",
            (Companion("weight_scale", E8M0, ("O I/32",)), ASYMMETRIC), UNFILLED, whole=32,
        ),
        WeightFormat(
            "mxfp6-pack-quantized", "weight_packed", ("U8",), "O I*3/4",
            (Companion("weight_scale", E8M0, ("O I/32",)), ASYMMETRIC), UNFILLED, whole=32,
        ),
        WeightFormat(
            "mxfp8-quantized", "weight", ("F8_E4M3",), "O I",
            (Companion("weight_scale", E8M0, ("O I/32",)), ASYMMETRIC), UNFILLED, whole=32,
        ),
        WeightFormat(
            "fp8-block", "weight", ("F8_E4M3",), "O I",
            (Companion("weight_scale_inv", (*FLOAT, *E8M0), ("O/r I/c",)),), RAW, (("weight_scale_inv", "weight_scale"),),
        ),
        WeightFormat(
            "fp8-mxfp4-experts", "weight", ("I8", "U8", "F4"), "O I/2",
            (Companion("weight_scale_inv", E8M0, ("O I/32",)),), RAW,
        ),
        WeightFormat(
            "fp8-tensor", "weight", ("F8_E4M3",), "O I",
            (
                Companion("weight_scale", FLOAT, (*ONE, "1 1")),
                Companion("input_scale", FLOAT, ONE, "static input"),
            ),
            RAW,
        ),
        WeightFormat(
            "gptq", "qweight", ("I32",), "I*b/32 O",
            (
                Companion("qzeros", ("I32",), ("I/g O*b/32",)),
                Companion("scales", FLOAT, ("I/g O",)),
                Companion("g_idx", ("I32",), ("I",), "activation order"),
                Companion("g_idx", ("I32",), ("I",), "no activation order", optional=True),
            ),
            "vLLM computes with uninitialised memory, and GPTQModel with zeros",
        ),
        WeightFormat(
            "awq", "qweight", ("I32",), "I O*b/32",
            (
                Companion("qzeros", ("I32",), ("I/g O*b/32",), "asymmetric"),
                Companion("qzeros", ("I32",), ("I/g O*b/32",), "symmetric", optional=True),
                Companion("scales", FLOAT, ("I/g O",)),
            ),
            UNFILLED,
        ),
        WeightFormat(
            "modelopt-fp8", "weight", ("F8_E4M3",), "O I",
            (
                *(companion for companion in SCALE if companion.when not in ("group", "channel")),
                Companion("weight_scale", FLOAT, ("O 1", "O"), "channel"),
                Companion("input_scale", FLOAT, ONE, "static input"),
                Companion("input_scale", FLOAT, ONE, "dynamic input", optional=True),
            ),
            UNFILLED,
            (("weight_scale", "weight_scale_inv"),),
        ),
        WeightFormat(
            "modelopt-nvfp4", "weight", ("U8",), "O I/2",
            (
                Companion("weight_scale", ("F8_E4M3",), ("O I/16",)),
                Companion("weight_scale_2", FLOAT, ONE),
                Companion("input_scale", FLOAT, ONE, "static global input"),
                Companion("input_scale", FLOAT, ONE, "no input", optional=True),
            ),
            "vLLM divides by what is not there: NaN, or logits that depend on uninitialised memory",
            (("weight_scale_2", "weight_global_scale"), ("input_scale", "input_global_scale")), 16,
        ),
        WeightFormat(
            "gpt-oss", "weight_blocks", ("U8",), "O I/32 16",
            (Companion("weight_scales", E8M0, ("O I/32",)),),
            "transformers, vLLM and SGLang cannot unpack the weight",
        ),
        WeightFormat(
            "bitsandbytes-4bit", "weight", ("U8", "F32", "F16", "BF16"), "",
            (
                Companion("absmax", ("F32", "U8")),
                Companion("quant_map", ("F32",), ("16",)),
                Companion("quant_state", ("U8",)),
                Companion("nested_absmax", ("F32",), (), "quantized scales"),
                Companion("nested_quant_map", ("F32",), ("256",), "quantized scales"),
            ),
            "bitsandbytes cannot unpack the weight",
        ),
        WeightFormat(
            "bitsandbytes-8bit", "weight", ("I8",), "O I",
            (
                Companion("SCB", ("F32", "F16", "BF16"), ("O",)),
                Companion("weight_format", ("U8",), optional=True),
            ),
            "transformers computes with raw integers",
        ),
        WeightFormat(
            "quark", "weight", ("F8_E4M3", "I8", "U8", "I32"), "",
            (
                Companion("weight_scale", (*FLOAT, *E8M0, "F8_E4M3")),
                Companion("weight_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
                Companion("weight_scale_2", FLOAT, (), optional=True),
                Companion("input_scale", FLOAT, (), optional=True),
                Companion("input_scale_2", FLOAT, (), optional=True),
                Companion("input_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
            ),
            UNFILLED,
        ),
    )
}  # fmt: skip
"""Name → format."""
FORMATS["naive-quantized"] = FORMATS["int-quantized"]
"""The name that compressed-tensors uses for 8-bit weights, integers or floats; `faults` chooses by the scheme's type."""
ROUNDED = "AutoRound, with which transformers loads it, computes with zeros or uninitialised memory in its place"
FORMATS["auto-round-gptq"] = structs.replace(FORMATS["gptq"], name="auto-round-gptq", needs=ROUNDED)
FORMATS["auto-round-awq"] = structs.replace(
    FORMATS["awq"],
    name="auto-round-awq",
    needs=ROUNDED,
    companions=(Companion("qzeros", ("I32",), ("I/g O*b/32",)), Companion("scales", FLOAT, ("I/g O",))),
)
QUARK_INPUTS = (
    Companion("input_scale", FLOAT, ONE, "static input"),
    Companion("input_scale", FLOAT, (), "dynamic input", optional=True),
    Companion("input_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
    Companion("output_scale", FLOAT, (), optional=True),
)
QUARK_SHAPES = (
    WeightFormat(
        "quark-fp8", "weight", ("F8_E4M3",), "O I",
        (
            Companion("weight_scale", FLOAT, ONE, "tensor"),
            Companion("weight_scale", FLOAT, ("O", "O 1"), "channel"),
            Companion("weight_zero_point", ("I8", "I32", "U8", "F8_E4M3"), (), optional=True),
            *QUARK_INPUTS,
        ),
        UNFILLED,
    ),
    WeightFormat(
        "quark-int4", "weight", ("I32",), "I O*b/32",
        (
            Companion("weight_scale", FLOAT, ("I/g O",)),
            Companion("weight_zero_point", ("I32",), ("I/g O*b/32",)),
            *QUARK_INPUTS,
        ),
        UNFILLED,
    ),
    WeightFormat(
        "quark-mxfp4", "weight", ("U8",), "O I/2",
        (Companion("weight_scale", E8M0, ("O I/32",)), *QUARK_INPUTS), UNFILLED, whole=32,
    ),
)  # fmt: skip
"""Formats of Quark 0.13 whose settings determine the shapes."""
FORMATS |= {form.name: form for form in QUARK_SHAPES}
