"""A scale is stored under the name that another method gives it.

## What it checks
The scales have the names of the declared method: `weight_scale_inv` for DeepSeek-style fp8 in blocks, `weight_scale` for
compressed-tensors and ModelOpt, `weight_global_scale` for NVFP4 of compressed-tensors and `weight_scale_2` for ModelOpt's.

## Why it matters
Loaders go by names. transformers 5.23 takes the scale under the wrong name for an unknown tensor and the right one for
missing, and computes with raw FP8 numbers; vLLM stops. A renamed NVFP4 scale is also turned over: compressed-tensors divides by
its global scale, ModelOpt multiplies by its own.

## How to fix
Rename the tensors, or declare the method that wrote them. For NVFP4 store the reciprocal.

## When it can be wrong
Names that loaders rename themselves are known: `scale`, `scale_inv` and `qscale_weight` of DeepSeek-V4 and Mistral,
and `activation_scale`. A loader of your own may know more; `--ignore QNT004` there. It goes by names: an NVFP4 scale
that was renamed and not turned over looks right here, and `ckptcheck diff` does not unpack NVFP4 either: only a run
of the model shows it.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.told import told


@rule("QNT004", "scale-name", severity="error", when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_headers()
    assert ckpt.quantization is not None
    for found in told(ckpt, "name"):
        yield Problem(
            f"with {ckpt.quantization.method} it {found.fault.text}{found.others}: loaders go by the name and pass it over",
            file=found.file,
            key=found.key,
            hint="rename the tensors, or declare the method that wrote them",
        )
