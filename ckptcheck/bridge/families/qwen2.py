"""Qwen2: Llama with biases on queries, keys and values, which Llama's table knows too."""

from ckptcheck.bridge.families.llama import LLAMA

QWEN2 = LLAMA
