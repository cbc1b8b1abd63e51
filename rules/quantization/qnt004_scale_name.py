"""A scale has the name that another quantization method gives it.

## What it checks
Scales have the names of the declared method:
- `weight_scale_inv` for DeepSeek-style fp8 in blocks, `weight_scale` for compressed-tensors and ModelOpt;
- for NVFP4 `weight_global_scale` in compressed-tensors and `weight_scale_2` in ModelOpt.

## Why it matters
Loaders go by names. For transformers 5.23 the scale under the wrong name is an unknown tensor and the right one is missing, so
it computes with raw FP8 numbers; vLLM stops. The two NVFP4 scales are also reciprocals: compressed-tensors divides by its
global scale, ModelOpt multiplies by its own.

## How to fix
Rename the tensors, or declare the method that wrote them. For NVFP4 store the reciprocal.

## When it can be wrong
- The rule knows the names that loaders rename themselves: `scale`, `scale_inv` and `qscale_weight` of DeepSeek-V4 and Mistral, and
  `activation_scale`. A loader of your own may know more. Use `--ignore QNT004` there.
- It judges names only. It misses an NVFP4 scale that was renamed but not inverted. `ckptcheck diff` does not unpack NVFP4 either;
  only a run of the model shows it.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import group_faults


@rule("QNT004", "scale-name", severity="error", on="quantization", when=lambda ckpt: not ckpt.is_partial)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_headers()
    for group in group_faults(ckpt, "name"):
        yield Problem(
            f"with {ckpt.quantization.method} it {group.fault.text}{group.others}: "
            f"loaders look for that name and ignore this tensor",
            file=group.file,
            key=group.key,
            hint="rename the tensors, or declare the method that wrote them",
        )
