"""Mixtral: its files name gate, down and up of an expert w1, w2 and w3; transformers 5 holds them as Qwen3-MoE's."""

from ckptcheck.bridge.families.llama import LAYER, LLAMA, MEGATRON_LAYER
from ckptcheck.bridge.families.qwen3_moe import MEGATRON_EXPERT
from ckptcheck.bridge.layouts import glu
from ckptcheck.bridge.table import Table, to

EXPERT = f"{LAYER}.block_sparse_moe.experts.{{1}}"
PAIR = (f"{EXPERT}.w1.weight", f"{EXPERT}.w3.weight")
ROUTER = f"{LAYER}.block_sparse_moe.gate.weight"

MIXTRAL = Table(
    {
        **LLAMA.megatron,
        f"{MEGATRON_LAYER}.mlp.router.weight": to(ROUTER),
        f"{MEGATRON_EXPERT}.linear_fc1.weight": to(*PAIR, cut=glu),
        f"{MEGATRON_EXPERT}.linear_fc2.weight": to(f"{EXPERT}.w2.weight"),
    },
    {
        **LLAMA.variants,
        "model.layers.{}.mlp.gate.weight": to(ROUTER),
        "model.layers.{}.mlp.experts.gate_up_proj": to(*PAIR, cut=glu, stacked=True),
        "model.layers.{}.mlp.experts.down_proj": to(f"{EXPERT}.w2.weight", stacked=True),
        "model.layers.{}.mlp.experts.{}.gate_proj.weight": to(PAIR[0]),
        "model.layers.{}.mlp.experts.{}.up_proj.weight": to(PAIR[1]),
        "model.layers.{}.mlp.experts.{}.down_proj.weight": to(f"{EXPERT}.w2.weight"),
    },
)
