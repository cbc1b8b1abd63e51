"""The tables of DeepSeek-V3 (also Kimi K2) and GLM-4.5.

DeepSeek-V3 has latent attention, shared experts, a router bias and multi-token prediction. GLM-4.5 (MoE) has the attention
of Qwen3 and the experts and multi-token prediction of DeepSeek-V3.
"""

from ckptcheck.compare.bridge.families.llama import ATTENTION, LAYER, LLAMA, MEGATRON_ATTENTION, MEGATRON_LAYER
from ckptcheck.compare.bridge.families.qwen3 import EXPERTS, FUSED, QWEN3_MOE
from ckptcheck.compare.bridge.family_table import FamilyTable, entry
from ckptcheck.compare.bridge.splitters import split_glu

LATENT = {
    f"{MEGATRON_ATTENTION}.{stored}.weight": entry(f"{ATTENTION}.{plain}.weight")
    for stored, plain in {
        "linear_q_proj": "q_proj",
        "linear_q_down_proj": "q_a_proj",
        "linear_q_up_proj": "q_b_proj",
        "q_layernorm": "q_a_layernorm",
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        "linear_kv_up_proj": "kv_b_proj",
        "kv_layernorm": "kv_a_layernorm",
    }.items()
}
SHARED = {
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc1.weight": entry(
        f"{LAYER}.mlp.shared_experts.gate_proj.weight", f"{LAYER}.mlp.shared_experts.up_proj.weight", split=split_glu
    ),
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc2.weight": entry(f"{LAYER}.mlp.shared_experts.down_proj.weight"),
    f"{MEGATRON_LAYER}.mlp.router.expert_bias": entry(f"{LAYER}.mlp.gate.e_score_correction_bias"),
}
PREDICTION = {
    f"{MEGATRON_LAYER}.enorm.weight": entry(f"{LAYER}.enorm.weight"),
    f"{MEGATRON_LAYER}.hnorm.weight": entry(f"{LAYER}.hnorm.weight"),
    f"{MEGATRON_LAYER}.eh_proj.weight": entry(f"{LAYER}.eh_proj.weight"),
    f"{MEGATRON_LAYER}.final_layernorm.weight": entry(f"{LAYER}.shared_head.norm.weight"),
}
"""Layers of multi-token prediction, numbered after the other layers as in Hugging Face files."""
COPIES = {
    "model.layers.{}.embed_tokens.weight": "model.embed_tokens.weight",
    "model.layers.{}.shared_head.head.weight": "lm_head.weight",
}

DEEPSEEK_V3 = FamilyTable(
    {**LLAMA.megatron, **LATENT, **EXPERTS, **SHARED, **PREDICTION}, {**LLAMA.variants, **FUSED}, COPIES
)
GLM4_MOE = FamilyTable({**QWEN3_MOE.megatron, **SHARED, **PREDICTION}, QWEN3_MOE.variants, COPIES)
