"""Llama, and Mistral, which has the same tensors."""

from ckptcheck.bridge.layouts import glu, qkv, qkv_plain
from ckptcheck.bridge.table import Table, to

LAYER = "model.layers.{0}"
ATTENTION = f"{LAYER}.self_attn"
MEGATRON_LAYER = "decoder.layers.{}"
MEGATRON_ATTENTION = f"{MEGATRON_LAYER}.self_attention"
OUTSIDE = {
    "embedding.word_embeddings.weight": to("model.embed_tokens.weight"),
    "decoder.final_layernorm.weight": to("model.norm.weight"),
    "output_layer.weight": to("lm_head.weight"),
    "value_head.weight": to("score.weight"),
    "value_head.bias": to("score.bias"),
}
"""Outside the layers. `value_head` is the head of a critic (ROLL's McaValueModel, verl)."""
NORMS = {
    f"{MEGATRON_LAYER}.input_layernorm.weight": to(f"{LAYER}.input_layernorm.weight"),
    f"{MEGATRON_LAYER}.pre_mlp_layernorm.weight": to(f"{LAYER}.post_attention_layernorm.weight"),
}
QKV = {
    f"{MEGATRON_ATTENTION}.linear_qkv.{kind}": to(*(f"{ATTENTION}.{part}_proj.{kind}" for part in "qkv"), cut=qkv)
    for kind in ("weight", "bias")
} | {f"{MEGATRON_ATTENTION}.linear_proj.{kind}": to(f"{ATTENTION}.o_proj.{kind}") for kind in ("weight", "bias")}
DENSE = {
    f"{MEGATRON_LAYER}.mlp.linear_fc1.{kind}": to(
        f"{LAYER}.mlp.gate_proj.{kind}", f"{LAYER}.mlp.up_proj.{kind}", cut=glu
    )
    for kind in ("weight", "bias")
} | {f"{MEGATRON_LAYER}.mlp.linear_fc2.{kind}": to(f"{LAYER}.mlp.down_proj.{kind}") for kind in ("weight", "bias")}
FUSED = {
    "model.layers.{}.self_attn.qkv_proj.weight": to(
        *(f"{ATTENTION}.{part}_proj.weight" for part in "qkv"), cut=qkv_plain
    ),
    "model.layers.{}.self_attn.qkv_proj.bias": to(*(f"{ATTENTION}.{part}_proj.bias" for part in "qkv"), cut=qkv_plain),
    "model.layers.{}.mlp.gate_up_proj.weight": to(
        f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight", cut=glu
    ),
}
"""Projections that engines join, as a dump of their state dict holds them."""

LLAMA = Table(OUTSIDE | NORMS | QKV | DENSE, FUSED)
