"""Explains an engine's refusal to start on a CPU, if its message does not say that a kernel is missing.

The messages were observed on vLLM 0.32.0 and SGLang 0.5.23 on CPUs.
"""

from __future__ import annotations

import re

EXPERTS = (
    "on a CPU this engine has no kernel for experts quantized like this: leave the experts unquantized, "
    "or use another engine or a GPU"
)
SIXTEEN_BITS = "this engine computes quantized weights in 16 bits only: pass --dtype bfloat16"
CUDA = "this checkpoint needs kernels that only run on GPUs; --set engine-mode=plain computes quantized weights in torch instead"
MESSAGES = (
    ("vllm", re.compile(r"No (WNA16|Int8) MoE backend supports|Unsupported FP8 MoE backend: NONE"), EXPERTS),
    ("sglang", re.compile(r"W8A8Int8 Fused MoE scheme is implemented only for NPU"), EXPERTS),
    ("sglang", re.compile(r"torch\.float32 is not supported for quantization method"), SIXTEEN_BITS),
    ("sglang", re.compile(r"Torch not compiled with CUDA enabled"), CUDA),
)
"""Engine, pattern of its message, and the hint."""


def explain_refusal(engine: str, message: str) -> str | None:
    """Return the hint for an engine's message; None if it is not about a missing kernel."""
    return next((hint for name, pattern, hint in MESSAGES if name == engine and pattern.search(message)), None)
