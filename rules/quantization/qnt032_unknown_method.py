"""The quantization config names a method that no consumer knows.

## What it checks
If weights are stored quantized, by any method whose tensors ckptcheck knows by their names, `quant_method` is a method of
transformers 5.23, vLLM 0.32 or SGLang 0.5.23.

## Why it matters
transformers warns of an unknown method, goes on without quantization, and starts the weights from random numbers or leaves out
their scales. vLLM and SGLang stop.

## How to fix
Write the method of the tool that quantized the model: `compressed-tensors`, `fp8`, `gptq`, `awq`, `modelopt`, …

## When it can be wrong
A consumer of your own, or a newer one, may know the method: `--ignore QNT032`.

## Seen in
No public report: the warning of transformers was observed.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.packing import PACKED
from ckptcheck.checkpoint.views import QuantizedCheckpoint

METHODS = frozenset((
    # transformers 5.23, AUTO_QUANTIZATION_CONFIG_MAPPING
    "gguf", "awq", "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit", "eetq", "gptq", "aqlm", "quanto", "quark",
    "fouroversix", "fp_quant", "hqq", "compressed-tensors", "fbgemm_fp8", "higgs", "torchao", "bitnet", "vptq", "spqr", "fp8",
    "nvfp4", "mxfp8", "auto-round", "mxfp4", "metal", "sinq", "gemma",
    # vLLM 0.32, QuantizationMethods
    "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto_gptq", "gptq_marlin", "awq_marlin", "auto_awq", "humming",
    "experts_int8", "moe_wna16", "inc", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block",
    "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token",
    # SGLang 0.5.23, QUANTIZATION_METHODS
    "minimax_m3_nvfp4", "blockwise_int8", "modelopt_fp8", "nvfp4_online", "w8a8_int8", "w8a8_fp8", "w4afp8", "petit_nvfp4",
    "quark_mxfp4", "auto-round-int8", "modelslim", "quark_int4fp8_moe", "mxfp_w4a8", "mlx_q4", "mlx_q8",
    # others that write checkpoints
    "mlx", "intel/auto-round", "gptqmodel", "exl2", "exl3", "bitblas", "compressed_tensors", "marlin", "ascend", "tpu_int8",
    "fp8_e4m3", "qqq", "neuron_quant", "deepspeedfp", "ipex", "rtn",
))  # fmt: skip


@rule(
    "QNT032",
    "unknown-method",
    severity="warning",
    on="quantization",
    when=lambda ckpt: (
        any(stored.is_quantized for stored in ckpt.quantization.storages)
        or any(PACKED.search(name) for name in ckpt.tensors)
    ),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    declared = ckpt.quantization.main_declaration
    if declared is None or declared.method is None or declared.method in METHODS:
        return
    yield Problem(
        f"quant_method is {clip(declared.method, 40)}, which neither transformers nor vLLM nor SGLang knows: transformers goes on "
        "without quantization, the engines stop",
        file=declared.file,
        key=declared.key_path("quant_method"),
        hint="name the method of the tool that quantized the weights",
    )
