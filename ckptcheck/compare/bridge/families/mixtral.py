"""The table of Mixtral: its files name gate, down and up of an expert w1, w2 and w3; transformers 5 fuses them like Qwen3-MoE."""

from ckptcheck.compare.bridge.families.llama import LAYER, LLAMA, MEGATRON_LAYER
from ckptcheck.compare.bridge.families.qwen3 import MEGATRON_EXPERT
from ckptcheck.compare.bridge.family_table import FamilyTable, entry
from ckptcheck.compare.bridge.splitters import split_glu

EXPERT = f"{LAYER}.block_sparse_moe.experts.{{1}}"
PAIR = (f"{EXPERT}.w1.weight", f"{EXPERT}.w3.weight")
ROUTER = f"{LAYER}.block_sparse_moe.gate.weight"

MIXTRAL = FamilyTable(
    {
        **LLAMA.megatron,
        f"{MEGATRON_LAYER}.mlp.router.weight": entry(ROUTER),
        f"{MEGATRON_EXPERT}.linear_fc1.weight": entry(*PAIR, split=split_glu),
        f"{MEGATRON_EXPERT}.linear_fc2.weight": entry(f"{EXPERT}.w2.weight"),
    },
    {
        **LLAMA.variants,
        "model.layers.{}.mlp.gate.weight": entry(ROUTER),
        "model.layers.{}.mlp.experts.gate_up_proj": entry(*PAIR, split=split_glu, stacked=True),
        "model.layers.{}.mlp.experts.down_proj": entry(f"{EXPERT}.w2.weight", stacked=True),
        "model.layers.{}.mlp.experts.{}.gate_proj.weight": entry(PAIR[0]),
        "model.layers.{}.mlp.experts.{}.up_proj.weight": entry(PAIR[1]),
        "model.layers.{}.mlp.experts.{}.down_proj.weight": entry(f"{EXPERT}.w2.weight"),
    },
)
