"""Qwen3-MoE: experts under ``mlp.experts``, one by one or, as transformers 5 holds them, in one tensor."""

from ckptcheck.bridge.families.llama import LAYER, MEGATRON_LAYER
from ckptcheck.bridge.families.qwen3 import QWEN3
from ckptcheck.bridge.layouts import glu
from ckptcheck.bridge.table import Table, to

EXPERT = f"{LAYER}.mlp.experts.{{1}}"
MEGATRON_EXPERT = f"{MEGATRON_LAYER}.mlp.experts.local_experts.{{}}"
PAIR = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
DOWN = f"{EXPERT}.down_proj.weight"
EXPERTS = {
    f"{MEGATRON_LAYER}.mlp.router.weight": to(f"{LAYER}.mlp.gate.weight"),
    f"{MEGATRON_EXPERT}.linear_fc1.weight": to(*PAIR, cut=glu),
    f"{MEGATRON_EXPERT}.linear_fc2.weight": to(DOWN),
}
FUSED = {
    "model.layers.{}.mlp.experts.gate_up_proj": to(*PAIR, cut=glu, stacked=True),
    "model.layers.{}.mlp.experts.down_proj": to(DOWN, stacked=True),
}
"""[experts, 2 × width, hidden] and [experts, hidden, width]."""

QWEN3_MOE = Table({**QWEN3.megatron, **EXPERTS}, {**QWEN3.variants, **FUSED})
