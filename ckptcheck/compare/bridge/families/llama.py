"""The table of Llama; Mistral and Qwen2 have the same tensors."""

from ckptcheck.compare.bridge.family_table import FamilyTable, entry
from ckptcheck.compare.bridge.splitters import split_glu, split_qkv_interleaved, split_qkv_stacked

LAYER = "model.layers.{0}"
ATTENTION = f"{LAYER}.self_attn"
MEGATRON_LAYER = "decoder.layers.{}"
MEGATRON_ATTENTION = f"{MEGATRON_LAYER}.self_attention"
OUTSIDE = {
    "embedding.word_embeddings.weight": entry("model.embed_tokens.weight"),
    "decoder.final_layernorm.weight": entry("model.norm.weight"),
    "output_layer.weight": entry("lm_head.weight"),
    "value_head.weight": entry("score.weight"),
    "value_head.bias": entry("score.bias"),
}
"""Tensors outside the layers. `value_head` is the head of a critic (ROLL's McaValueModel, verl)."""
NORMS = {
    f"{MEGATRON_LAYER}.input_layernorm.weight": entry(f"{LAYER}.input_layernorm.weight"),
    f"{MEGATRON_LAYER}.pre_mlp_layernorm.weight": entry(f"{LAYER}.post_attention_layernorm.weight"),
}
QKV = {
    f"{MEGATRON_ATTENTION}.linear_qkv.{kind}": entry(
        *(f"{ATTENTION}.{part}_proj.{kind}" for part in "qkv"), split=split_qkv_interleaved
    )
    for kind in ("weight", "bias")
} | {f"{MEGATRON_ATTENTION}.linear_proj.{kind}": entry(f"{ATTENTION}.o_proj.{kind}") for kind in ("weight", "bias")}
DENSE = {
    f"{MEGATRON_LAYER}.mlp.linear_fc1.{kind}": entry(
        f"{LAYER}.mlp.gate_proj.{kind}", f"{LAYER}.mlp.up_proj.{kind}", split=split_glu
    )
    for kind in ("weight", "bias")
} | {f"{MEGATRON_LAYER}.mlp.linear_fc2.{kind}": entry(f"{LAYER}.mlp.down_proj.{kind}") for kind in ("weight", "bias")}
FUSED = {
    "model.layers.{}.self_attn.qkv_proj.weight": entry(
        *(f"{ATTENTION}.{part}_proj.weight" for part in "qkv"), split=split_qkv_stacked
    ),
    "model.layers.{}.self_attn.qkv_proj.bias": entry(
        *(f"{ATTENTION}.{part}_proj.bias" for part in "qkv"), split=split_qkv_stacked
    ),
    "model.layers.{}.mlp.gate_up_proj.weight": entry(
        f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight", split=split_glu
    ),
}
"""Projections that inference engines fuse; a dump of an engine's state dict holds them fused."""

LLAMA = FamilyTable(OUTSIDE | NORMS | QKV | DENSE, FUSED)
