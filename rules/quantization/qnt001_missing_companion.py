"""A quantized weight lacks a tensor that it cannot be read without.

## What it checks
Every quantized weight has the scales, zero points and other companions that its format and the scheme in the config require:
compressed-tensors, DeepSeek-style fp8, GPTQ, AWQ, ModelOpt, gpt-oss' MXFP4, bitsandbytes, Quark and AutoRound.

- The tensors show which modules are quantized. If a config has several schemes, a module is sound if it satisfies any of them.
- The patterns of GPTQ's `dynamic` are matched to modules first, so each module needs what its own bits and groups require.

## Why it matters
Nothing stops. transformers 5.23 loads an FP8 weight without `weight_scale_inv` with an empty report, and the raw numbers are 1000
times too large. vLLM allocates the scale and never fills it. Experts of NVFP4 lack `input_scale` if calibration never routed a
token to them, and give NaN that depends on the prompt.

compressed-tensors unpacks integers to their `weight_shape`. Without it transformers 5.23 does stop: while it loads, or at the first
token with `run_compressed`. vLLM and SGLang do not use it.

## How to fix
Quantize again. Scales of activations need a calibration that reaches every expert, or a scheme that is dynamic.

## When it can be wrong
A loader of your own may compute a scale that a format stores.

## Seen in
vllm-project/vllm#45212, vllm-project/vllm#54444, sgl-project/sglang#23625, ModelCloud/GPTQModel#3077,
huggingface/text-generation-inference#601
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import group_faults


@rule(
    "QNT001",
    "missing-companion",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for group in group_faults(ckpt, "missing"):
        yield Problem(
            f"it is missing beside {group.weight}{group.others}: {group.fault.needs}",
            file=group.file,
            key=group.key,
            hint="quantize again, or copy the tensor from the checkpoint that this one was made of",
        )
