"""A quantized weight and the tensors beside it, such as scales, do not belong together.

## What it checks
Every quantized weight has the scales, zero points and other companions that its format and the scheme in the config require:
compressed-tensors, DeepSeek-style fp8, GPTQ, AWQ, ModelOpt, gpt-oss' MXFP4, bitsandbytes, Quark and AutoRound.
- None is missing, and none is there that its scheme does not have, or without a quantized weight.
- The dtype and shape of each follow from the packed weight and from bits, group size, strategy and symmetry in the config. The
  packed weight itself has rows and columns (and a dimension more for experts together), in NVFP4 and the MX formats whole groups.
- Scales have the names of the declared method: `weight_scale_inv` for fp8 in blocks, `weight_scale` for compressed-tensors and
  ModelOpt; for NVFP4 `weight_global_scale` in compressed-tensors and `weight_scale_2` in ModelOpt.

If a config has several schemes, a module is sound if it satisfies any of them; the patterns of GPTQ's `dynamic` are matched first.

## Why it matters
- Nothing stops at a missing scale: transformers 5.23 computes with raw FP8 numbers, 1000 times too large; vLLM never fills the
  scale that it allocates. NVFP4 experts without `input_scale` give NaN that depends on the prompt. Without `weight_shape`
  transformers stops.
- vLLM stops at a tensor without a place, or multiplies the weight by a scale that is not the weight's.
- Engines stop at another shape at best; if the product of the sizes is the same, groups get their neighbour's scale. A scale of
  another dtype is cast: E8M0 exponents read as numbers are off by orders of magnitude.
- A scale under another method's name is unknown to loaders. The two NVFP4 scales are also reciprocals.

## How to fix
Quantize again. Correct the scheme in the config if the weights are right; rename scales, or declare the method that wrote them.

## When it can be wrong
- A loader of your own may compute, cast or rename a scale. The names that engines rename themselves are known (`scale`,
  `scale_inv`, `qscale_weight`, `activation_scale`). transformers and a few of vLLM's models ignore unknown tensors.
- It misses a mix-up of two schemes where no consumer's matching decides, a wrong group size with the same number of groups, and
  an NVFP4 scale that was renamed but not inverted.

## Seen in
vllm-project/vllm#45212, vllm-project/vllm#54444, sgl-project/sglang#23625, ModelCloud/GPTQModel#3077,
huggingface/text-generation-inference#601; vllm-project/vllm#31757 (`shared_head.head.weight_scale` beside a head in BF16),
unslothai/unsloth#6200; vllm-project/vllm#50214 (group size 32 where 128 was declared), vllm-project/vllm#5915; bitsandbytes 0.50.2
on a CPU (`absmax` in BF16 after a forward pass); NVIDIA/Model-Optimizer#1807 (names)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import FaultGroup, group_faults
from ckptcheck.text.formatting import format_shape

KINDS = {
    "dtype": (
        "its dtype {text}, which {scheme} requires{others}",
        "correct the scheme in the config if the weights are right, else quantize again",
    ),
    "shape": (
        "its shape {text}, which {scheme} requires{size}{others}",
        "correct the scheme in the config if the weights are right, else quantize again",
    ),
    "name": (
        "with {method} it {text}{others}: loaders look for that name and ignore this tensor",
        "rename the tensors, or declare the method that wrote them",
    ),
    "missing": (
        "it is missing beside {weight}{others}: {needs}",
        "quantize again, or copy the tensor from the checkpoint that this one was made of",
    ),
    "orphan": (
        "it belongs to {weight}, which is not quantized{others}: vLLM stops, or multiplies a weight that was never divided by this "
        "scale",
        "remove it, or store the quantized weight that it was computed for",
    ),
    "weightless": (
        "there is no weight for it{others}: the weight was lost or has another name",
        "remove it, or store the quantized weight that it was computed for",
    ),
    "surplus": (
        "the config declares no such tensor for {weight}{others}: vLLM has no place for it and stops",
        "remove it, or store the quantized weight that it was computed for",
    ),
}
"""Kind of fault → the message and the hint."""
OF_HEADERS = ("dtype", "shape", "name")
"""Kinds that a missing shard cannot cause."""


@rule("QNT001", "unfit-companion", severity="error", on="quantization", when=lambda ckpt: not ckpt.is_partial)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_headers()
    for group in group_faults(ckpt, *OF_HEADERS):
        if group.weight is not None:
            yield _describe(ckpt, group)
    ckpt.require_whole()
    told: set[tuple[str | None, tuple[str, ...]]] = set()
    for group in group_faults(ckpt, *(kind for kind in KINDS if kind not in OF_HEADERS)):
        # a weight lost all that belongs to it: one finding, for the first of these tensors
        if group.fault.kind == "missing":
            if (group.weight, group.modules) in told:
                continue
            told.add((group.weight, group.modules))
        # compressed-tensors stores only the nonzero numbers of a sparse weight; engines refuse that (QNT031)
        is_sparse = f"{group.key.rpartition('.')[0]}.compressed" in ckpt.tensors
        if group.fault.kind != "weightless" or not is_sparse:
            yield _describe(ckpt, group)


def _describe(ckpt: QuantizedCheckpoint, group: FaultGroup) -> Problem:
    message, hint = KINDS[group.fault.kind]
    weight = group.weight
    text = message.format(
        text=group.fault.text,
        scheme=group.fault.scheme_key,
        size=f" for a weight stored as {format_shape(ckpt.tensors[weight].shape)}"
        if weight and weight != group.key
        else "",
        others=group.others,
        method=ckpt.quantization.method,
        weight=weight,
        needs=group.fault.needs,
    )
    return Problem(text, file=group.file, key=group.key, hint=hint, names=group.modules)
