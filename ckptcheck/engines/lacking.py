"""What engines have no kernel for, by the words with which they refuse to start: these do not say that it is the CPU.

Read against, and seen on, vLLM 0.32.0 and SGLang 0.5.23 on CPUs.
"""

from __future__ import annotations

import re

EXPERTS = (
    "on a CPU it has no kernel for experts that are quantized so: leave them plain, or take another engine or a GPU"
)
SIXTEEN = "it computes quantized weights in 16 bits only: --dtype bfloat16"
CUDA = "what this checkpoint needs runs on GPUs only; --engine-mode plain computes quantized weights in torch"
WORDS = (
    ("vllm", re.compile(r"No (WNA16|Int8) MoE backend supports|Unsupported FP8 MoE backend: NONE"), EXPERTS),
    ("sglang", re.compile(r"W8A8Int8 Fused MoE scheme is implemented only for NPU"), EXPERTS),
    ("sglang", re.compile(r"torch\.float32 is not supported for quantization method"), SIXTEEN),
    ("sglang", re.compile(r"Torch not compiled with CUDA enabled"), CUDA),
)
"""Engine, words of it, and what they come to."""


def hint(engine: str, said: str) -> str | None:
    """Return what an engine's refusal comes to, None where it is not one of these."""
    return next((what for name, words, what in WORDS if name == engine and words.search(said)), None)
