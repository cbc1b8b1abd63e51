"""The table of gpt-oss: biases everywhere, attention sinks, and experts whose gate and up alternate in one tensor.

The plain form names the experts one by one. No file of the family does, but both stored forms can be split into it.
"""

from ckptcheck.compare.bridge.families.llama import ATTENTION, LAYER, LLAMA, MEGATRON_ATTENTION, MEGATRON_LAYER
from ckptcheck.compare.bridge.families.qwen3 import MEGATRON_EXPERT
from ckptcheck.compare.bridge.family_table import FamilyTable, entry
from ckptcheck.compare.bridge.splitters import split_glu, split_glu_alternating, split_transposed

EXPERT = f"{LAYER}.mlp.experts.{{1}}"


def _pair(kind: str) -> tuple[str, str]:
    return f"{EXPERT}.gate_proj.{kind}", f"{EXPERT}.up_proj.{kind}"


GPT_OSS = FamilyTable(
    {
        **LLAMA.megatron,
        f"{MEGATRON_ATTENTION}.core_attention.softmax_offset": entry(f"{ATTENTION}.sinks"),
        f"{MEGATRON_LAYER}.mlp.router.weight": entry(f"{LAYER}.mlp.router.weight"),
        f"{MEGATRON_LAYER}.mlp.router.bias": entry(f"{LAYER}.mlp.router.bias"),
        **{f"{MEGATRON_EXPERT}.linear_fc1.{kind}": entry(*_pair(kind), split=split_glu) for kind in ("weight", "bias")},
        **{f"{MEGATRON_EXPERT}.linear_fc2.{kind}": entry(f"{EXPERT}.down_proj.{kind}") for kind in ("weight", "bias")},
    },
    {
        **LLAMA.variants,
        "model.layers.{}.mlp.experts.gate_up_proj": entry(*_pair("weight"), split=split_glu_alternating, stacked=True),
        "model.layers.{}.mlp.experts.gate_up_proj_bias": entry(
            *_pair("bias"), split=split_glu_alternating, stacked=True
        ),
        "model.layers.{}.mlp.experts.down_proj": entry(
            f"{EXPERT}.down_proj.weight", split=split_transposed, stacked=True
        ),
        "model.layers.{}.mlp.experts.down_proj_bias": entry(f"{EXPERT}.down_proj.bias", stacked=True),
    },
)
