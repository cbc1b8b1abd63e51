"""DeepSeek-V3 and its kin (Kimi K2): latent attention, shared experts, a router bias, multi-token prediction."""

from ckptcheck.bridge.families.llama import ATTENTION, LAYER, LLAMA, MEGATRON_ATTENTION, MEGATRON_LAYER
from ckptcheck.bridge.families.qwen3_moe import EXPERTS, FUSED
from ckptcheck.bridge.layouts import glu
from ckptcheck.bridge.table import Table, to

LATENT = {
    f"{MEGATRON_ATTENTION}.{stored}.weight": to(f"{ATTENTION}.{plain}.weight")
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
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc1.weight": to(
        f"{LAYER}.mlp.shared_experts.gate_proj.weight", f"{LAYER}.mlp.shared_experts.up_proj.weight", cut=glu
    ),
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc2.weight": to(f"{LAYER}.mlp.shared_experts.down_proj.weight"),
    f"{MEGATRON_LAYER}.mlp.router.expert_bias": to(f"{LAYER}.mlp.gate.e_score_correction_bias"),
}
PREDICTION = {
    f"{MEGATRON_LAYER}.enorm.weight": to(f"{LAYER}.enorm.weight"),
    f"{MEGATRON_LAYER}.hnorm.weight": to(f"{LAYER}.hnorm.weight"),
    f"{MEGATRON_LAYER}.eh_proj.weight": to(f"{LAYER}.eh_proj.weight"),
    f"{MEGATRON_LAYER}.final_layernorm.weight": to(f"{LAYER}.shared_head.norm.weight"),
}
"""Layers of multi-token prediction, numbered on after the others, as Hugging Face files number them."""
COPIES = {
    "model.layers.{}.embed_tokens.weight": "model.embed_tokens.weight",
    "model.layers.{}.shared_head.head.weight": "lm_head.weight",
}

DEEPSEEK_V3 = Table(
    {**LLAMA.megatron, **LATENT, **EXPERTS, **SHARED, **PREDICTION}, {**LLAMA.variants, **FUSED}, COPIES
)
