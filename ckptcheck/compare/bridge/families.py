"""The tables of the model families, chosen by `model_type`.

Names in Megatron's form are written as `matching.megatron_side` leaves them; {} stands for a number, {0} and {1} for the first
and the second number of the stored name.
"""

from __future__ import annotations

from ckptcheck.checkpoint.config import Config
from ckptcheck.compare.bridge.family_table import FamilyTable, TableEntry, entry
from ckptcheck.compare.bridge.splitters import (
    split_glu,
    split_glu_alternating,
    split_qkv_interleaved,
    split_qkv_stacked,
    split_transposed,
)

LAYER, MEGATRON_LAYER, ANY_LAYER = "model.layers.{0}", "decoder.layers.{}", "model.layers.{}"
ATTENTION, MEGATRON_ATTENTION = f"{LAYER}.self_attn", f"{MEGATRON_LAYER}.self_attention"
EXPERT, MEGATRON_EXPERT = f"{LAYER}.mlp.experts.{{1}}", f"{MEGATRON_LAYER}.mlp.experts.local_experts.{{}}"
KINDS = ("weight", "bias")


def _glu(module: str, kind: str = "weight", gate: str = "gate_proj", up: str = "up_proj") -> TableEntry:
    """Return the entry of a tensor that joins gate and up."""
    return entry(f"{module}.{gate}.{kind}", f"{module}.{up}.{kind}", split=split_glu)


def _by_layer(**names: str) -> dict[str, TableEntry]:
    """Return entries of weights that keep their form. names: module in Megatron's layer → the plain module."""
    return {f"{MEGATRON_LAYER}.{ours}.weight": entry(f"{LAYER}.{plain}.weight") for ours, plain in names.items()}


# --- Llama; Mistral, Seed-OSS and Qwen2, which is Llama with biases, have the same tensors ---

OUTSIDE = {
    "embedding.word_embeddings.weight": entry("model.embed_tokens.weight"),
    "decoder.final_layernorm.weight": entry("model.norm.weight"),
    "output_layer.weight": entry("lm_head.weight"),
    "value_head.weight": entry("score.weight"),
    "value_head.bias": entry("score.bias"),
}
"""Tensors outside the layers. `value_head` is the head of a critic (ROLL's McaValueModel, verl)."""
INSIDE = {
    entry_name: found
    for kind in KINDS
    for entry_name, found in {
        f"{MEGATRON_ATTENTION}.linear_qkv.{kind}": entry(
            *(f"{ATTENTION}.{part}_proj.{kind}" for part in "qkv"), split=split_qkv_interleaved
        ),
        f"{MEGATRON_ATTENTION}.linear_proj.{kind}": entry(f"{ATTENTION}.o_proj.{kind}"),
        f"{MEGATRON_LAYER}.mlp.linear_fc1.{kind}": _glu(f"{LAYER}.mlp", kind),
        f"{MEGATRON_LAYER}.mlp.linear_fc2.{kind}": entry(f"{LAYER}.mlp.down_proj.{kind}"),
    }.items()
}
NORMS = _by_layer(input_layernorm="input_layernorm", pre_mlp_layernorm="post_attention_layernorm")
ENGINES = {
    **{
        f"{ANY_LAYER}.self_attn.qkv_proj.{kind}": entry(
            *(f"{ATTENTION}.{part}_proj.{kind}" for part in "qkv"), split=split_qkv_stacked
        )
        for kind in KINDS
    },
    f"{ANY_LAYER}.mlp.gate_up_proj.weight": _glu(f"{LAYER}.mlp"),
}
"""Projections that Phi-3 stores joined, and that inference engines fuse; a dump of an engine's state dict holds them fused."""
LLAMA = FamilyTable(OUTSIDE | NORMS | INSIDE, ENGINES)

# --- Qwen3: Llama with norms on queries and keys; Qwen3-MoE: its experts one by one or, since transformers 5, in one tensor ---

QWEN3 = FamilyTable(
    {
        **LLAMA.megatron,
        f"{MEGATRON_ATTENTION}.q_layernorm.weight": entry(f"{ATTENTION}.q_norm.weight"),
        f"{MEGATRON_ATTENTION}.k_layernorm.weight": entry(f"{ATTENTION}.k_norm.weight"),
    },
    LLAMA.variants,
)
EXPERTS = {
    f"{MEGATRON_LAYER}.mlp.router.weight": entry(f"{LAYER}.mlp.gate.weight"),
    f"{MEGATRON_EXPERT}.linear_fc1.weight": _glu(EXPERT),
    f"{MEGATRON_EXPERT}.linear_fc2.weight": entry(f"{EXPERT}.down_proj.weight"),
}
STACKED = {
    f"{ANY_LAYER}.mlp.experts.gate_up_proj": entry(*_glu(EXPERT).targets, split=split_glu, stacked=True),
    f"{ANY_LAYER}.mlp.experts.down_proj": entry(f"{EXPERT}.down_proj.weight", stacked=True),
}
"""[experts, 2 × width, hidden] and [experts, hidden, width]."""
QWEN3_MOE = FamilyTable({**QWEN3.megatron, **EXPERTS}, {**QWEN3.variants, **STACKED})

# --- Mixtral: its files name gate, down and up of an expert w1, w2 and w3; transformers 5 fuses them like Qwen3-MoE ---

BLOCK = f"{LAYER}.block_sparse_moe"
W123 = f"{BLOCK}.experts.{{1}}"
MIXTRAL = FamilyTable(
    {
        **LLAMA.megatron,
        f"{MEGATRON_LAYER}.mlp.router.weight": entry(f"{BLOCK}.gate.weight"),
        f"{MEGATRON_EXPERT}.linear_fc1.weight": _glu(W123, gate="w1", up="w3"),
        f"{MEGATRON_EXPERT}.linear_fc2.weight": entry(f"{W123}.w2.weight"),
    },
    {
        **LLAMA.variants,
        f"{ANY_LAYER}.mlp.gate.weight": entry(f"{BLOCK}.gate.weight"),
        f"{ANY_LAYER}.mlp.experts.gate_up_proj": entry(
            f"{W123}.w1.weight", f"{W123}.w3.weight", split=split_glu, stacked=True
        ),
        f"{ANY_LAYER}.mlp.experts.down_proj": entry(f"{W123}.w2.weight", stacked=True),
        f"{ANY_LAYER}.mlp.experts.{{}}.gate_proj.weight": entry(f"{W123}.w1.weight"),
        f"{ANY_LAYER}.mlp.experts.{{}}.up_proj.weight": entry(f"{W123}.w3.weight"),
        f"{ANY_LAYER}.mlp.experts.{{}}.down_proj.weight": entry(f"{W123}.w2.weight"),
    },
)

# --- DeepSeek-V3 (also Kimi K2): latent attention, shared experts, a router bias, multi-token prediction. GLM-4.5 (MoE) has the
# --- attention of Qwen3 and the rest of DeepSeek-V3 ---

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
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc1.weight": _glu(f"{LAYER}.mlp.shared_experts"),
    f"{MEGATRON_LAYER}.mlp.shared_experts.linear_fc2.weight": entry(f"{LAYER}.mlp.shared_experts.down_proj.weight"),
    f"{MEGATRON_LAYER}.mlp.router.expert_bias": entry(f"{LAYER}.mlp.gate.e_score_correction_bias"),
}
PREDICTION = _by_layer(enorm="enorm", hnorm="hnorm", eh_proj="eh_proj", final_layernorm="shared_head.norm")
"""Layers of multi-token prediction, numbered after the other layers as in Hugging Face files."""
COPIES = {
    f"{ANY_LAYER}.embed_tokens.weight": "model.embed_tokens.weight",
    f"{ANY_LAYER}.shared_head.head.weight": "lm_head.weight",
}
DEEPSEEK_V3 = FamilyTable(
    {**LLAMA.megatron, **LATENT, **EXPERTS, **SHARED, **PREDICTION}, {**LLAMA.variants, **STACKED}, COPIES
)
GLM4_MOE = FamilyTable({**QWEN3_MOE.megatron, **SHARED, **PREDICTION}, QWEN3_MOE.variants, COPIES)

# --- gpt-oss: biases everywhere, attention sinks, experts whose gate and up alternate in one tensor. The plain form names the
# --- experts one by one: no file of the family does, but both stored forms can be split into it ---

GPT_OSS = FamilyTable(
    {
        **LLAMA.megatron,
        f"{MEGATRON_ATTENTION}.core_attention.softmax_offset": entry(f"{ATTENTION}.sinks"),
        **{f"{MEGATRON_LAYER}.mlp.router.{kind}": entry(f"{LAYER}.mlp.router.{kind}") for kind in KINDS},
        **{f"{MEGATRON_EXPERT}.linear_fc1.{kind}": _glu(EXPERT, kind) for kind in KINDS},
        **{f"{MEGATRON_EXPERT}.linear_fc2.{kind}": entry(f"{EXPERT}.down_proj.{kind}") for kind in KINDS},
    },
    {
        **LLAMA.variants,
        **{
            f"{ANY_LAYER}.mlp.experts.gate_up_proj{ending}": entry(
                *_glu(EXPERT, kind).targets, split=split_glu_alternating, stacked=True
            )
            for ending, kind in (("", "weight"), ("_bias", "bias"))
        },
        f"{ANY_LAYER}.mlp.experts.down_proj": entry(f"{EXPERT}.down_proj.weight", split=split_transposed, stacked=True),
        f"{ANY_LAYER}.mlp.experts.down_proj_bias": entry(f"{EXPERT}.down_proj.bias", stacked=True),
    },
)

TABLES: dict[str, FamilyTable] = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "seed_oss": LLAMA, "phi3": LLAMA, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE,
    "mixtral": MIXTRAL, "deepseek_v2": DEEPSEEK_V3, "deepseek_v3": DEEPSEEK_V3, "kimi_k2": DEEPSEEK_V3, "glm4_moe": GLM4_MOE,
    "gpt_oss": GPT_OSS,
}  # fmt: skip
"""model_type → table."""


def find_family_table(config: Config | None) -> FamilyTable | None:
    """Return the table of a model's family; None if there is none."""
    if config is None:
        return None
    model_type = config.text.get("model_type") or config.model_type
    return TABLES.get(model_type) if isinstance(model_type, str) else None
