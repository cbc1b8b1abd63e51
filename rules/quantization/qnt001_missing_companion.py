"""A quantized weight lacks a tensor that it cannot be read without.

## What it checks
Every weight that is stored quantized has the scales, zero points and other companions that its format and the scheme in the
config demand: compressed-tensors, DeepSeek-style fp8, GPTQ, AWQ, ModelOpt, gpt-oss' MXFP4, bitsandbytes and Quark. Which modules
are quantized is read off the tensors; where a config has several schemes, a module is sound if it is what any of them demands.
The patterns of GPTQ's `dynamic` are matched to modules first: each module is held to its own bits and groups.

## Why it matters
Nothing stops. transformers 5.23 loads an FP8 weight without `weight_scale_inv` with an empty report, and the raw numbers are
1000 times too large. vLLM allocates the scale and never fills it: experts of NVFP4 that lack `input_scale`, because calibration
never routed a token to them, give NaN that depends on the prompt.

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
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.told import told


@rule(
    "QNT001",
    "missing-companion",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for found in told(ckpt, "missing"):
        assert found.fault.form is not None
        yield Problem(
            f"it is missing beside {found.weight}{found.others}: {found.fault.form.needs}",
            file=found.file,
            key=found.key,
            hint="quantize again, or copy the tensor from the checkpoint that this one was made of",
        )
