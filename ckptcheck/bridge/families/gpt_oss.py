"""gpt-oss: biases everywhere, attention sinks, and experts whose gate and up alternate in one tensor.

The plain form names experts one by one, as no file of the family does: so both forms can be cut to it.
"""

from ckptcheck.bridge.families.llama import ATTENTION, LAYER, LLAMA, MEGATRON_ATTENTION, MEGATRON_LAYER
from ckptcheck.bridge.families.qwen3_moe import MEGATRON_EXPERT
from ckptcheck.bridge.layouts import glu, glu_alternating, transposed
from ckptcheck.bridge.table import Table, to

EXPERT = f"{LAYER}.mlp.experts.{{1}}"


def _pair(kind: str) -> tuple[str, str]:
    return f"{EXPERT}.gate_proj.{kind}", f"{EXPERT}.up_proj.{kind}"


GPT_OSS = Table(
    {
        **LLAMA.megatron,
        f"{MEGATRON_ATTENTION}.core_attention.softmax_offset": to(f"{ATTENTION}.sinks"),
        f"{MEGATRON_LAYER}.mlp.router.weight": to(f"{LAYER}.mlp.router.weight"),
        f"{MEGATRON_LAYER}.mlp.router.bias": to(f"{LAYER}.mlp.router.bias"),
        **{f"{MEGATRON_EXPERT}.linear_fc1.{kind}": to(*_pair(kind), cut=glu) for kind in ("weight", "bias")},
        **{f"{MEGATRON_EXPERT}.linear_fc2.{kind}": to(f"{EXPERT}.down_proj.{kind}") for kind in ("weight", "bias")},
    },
    {
        **LLAMA.variants,
        "model.layers.{}.mlp.experts.gate_up_proj": to(*_pair("weight"), cut=glu_alternating, stacked=True),
        "model.layers.{}.mlp.experts.gate_up_proj_bias": to(*_pair("bias"), cut=glu_alternating, stacked=True),
        "model.layers.{}.mlp.experts.down_proj": to(f"{EXPERT}.down_proj.weight", cut=transposed, stacked=True),
        "model.layers.{}.mlp.experts.down_proj_bias": to(f"{EXPERT}.down_proj.bias", stacked=True),
    },
)
