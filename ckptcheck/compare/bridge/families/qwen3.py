"""The tables of Qwen3 (Llama with norms on queries and keys) and Qwen3-MoE.

Qwen3-MoE has its experts under ``mlp.experts``, one by one or, as transformers 5 holds them, in one tensor.
"""

from ckptcheck.compare.bridge.families.llama import ATTENTION, LAYER, LLAMA, MEGATRON_ATTENTION, MEGATRON_LAYER
from ckptcheck.compare.bridge.family_table import FamilyTable, entry
from ckptcheck.compare.bridge.splitters import split_glu

QK_NORMS = {
    f"{MEGATRON_ATTENTION}.q_layernorm.weight": entry(f"{ATTENTION}.q_norm.weight"),
    f"{MEGATRON_ATTENTION}.k_layernorm.weight": entry(f"{ATTENTION}.k_norm.weight"),
}

QWEN3 = FamilyTable({**LLAMA.megatron, **QK_NORMS}, LLAMA.variants)

EXPERT = f"{LAYER}.mlp.experts.{{1}}"
MEGATRON_EXPERT = f"{MEGATRON_LAYER}.mlp.experts.local_experts.{{}}"
PAIR = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
DOWN = f"{EXPERT}.down_proj.weight"
EXPERTS = {
    f"{MEGATRON_LAYER}.mlp.router.weight": entry(f"{LAYER}.mlp.gate.weight"),
    f"{MEGATRON_EXPERT}.linear_fc1.weight": entry(*PAIR, split=split_glu),
    f"{MEGATRON_EXPERT}.linear_fc2.weight": entry(DOWN),
}
FUSED = {
    "model.layers.{}.mlp.experts.gate_up_proj": entry(*PAIR, split=split_glu, stacked=True),
    "model.layers.{}.mlp.experts.down_proj": entry(DOWN, stacked=True),
}
"""[experts, 2 × width, hidden] and [experts, hidden, width]."""

QWEN3_MOE = FamilyTable({**QWEN3.megatron, **EXPERTS}, {**QWEN3.variants, **FUSED})
