"""Qwen3: Llama with norms on queries and keys."""

from ckptcheck.bridge.families.llama import ATTENTION, LLAMA, MEGATRON_ATTENTION
from ckptcheck.bridge.table import Table, to

QK_NORMS = {
    f"{MEGATRON_ATTENTION}.q_layernorm.weight": to(f"{ATTENTION}.q_norm.weight"),
    f"{MEGATRON_ATTENTION}.k_layernorm.weight": to(f"{ATTENTION}.k_norm.weight"),
}

QWEN3 = Table({**LLAMA.megatron, **QK_NORMS}, LLAMA.variants)
