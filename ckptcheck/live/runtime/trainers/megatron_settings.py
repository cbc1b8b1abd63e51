"""Converts a model's config.json to Megatron's settings, or says why Megatron's model would differ from that model.

Sources: transformers 5 configuration_{llama,qwen2,qwen3,qwen3_moe}.py; megatron-core 0.16 transformer_config.py,
models/gpt/gpt_model.py, transformer/moe/moe_utils.py `topk_routing_with_score_function` (the softmax over the chosen
experts is `norm_topk_prob`), rotary_pos_embedding.py `_apply_scaling` (Llama 3's constants).
"""

from __future__ import annotations

from typing import Any

from ckptcheck.checkpoint.config import INTERMEDIATE, Config
from ckptcheck.checkpoint.heads import is_language_model, is_scorer
from ckptcheck.compare.bridge.families import find_family_table
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.splitters import SplitFunction, keep_whole, split_glu, split_qkv_interleaved
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.layout import ParallelLayout

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
DTYPES = ("float32", "bfloat16")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The parameters of Llama 3's rope that are constants in Megatron; only the factor can be set."""
WORKER_LAYOUTS: dict[SplitFunction, str] = {keep_whole: "whole", split_glu: "glu", split_qkv_interleaved: "qkv"}
"""How a Megatron weight is split into Hugging Face tensors → the worker's name for that (megatron_layout.py)."""


def refuse_critic(config: Config | None, target: str) -> None:
    """Raise CkptcheckError for a critic or another scorer."""
    if is_scorer(config):
        raise CkptcheckError(
            f"{target} is a critic or another scoring model, and no engine serves one: there is nothing to sync it into",
            hint="ckptcheck scan and ckptcheck diff check critics",
        )


def megatron_settings(
    config: Config | None,
    layout: ParallelLayout,
    dtype: str,
    target: str,
    *,
    head_fp32: bool = False,
    allow_critic: bool = False,
) -> dict[str, Any]:
    """Return the settings from which the worker builds a model, as JSON.

    allow_critic: the model may also be a critic or another scorer. Raises CkptcheckError for a model that this trainer cannot
    build, or not in this layout.
    """
    if not allow_critic:
        refuse_critic(config, target)
    if config is None or not (is_language_model(config) or (allow_critic and is_scorer(config))):
        raise CkptcheckError(f"{target} has no config.json of a language model, which Megatron's model is built from")
    if dtype not in DTYPES:
        raise CkptcheckError(f"a trainer holds float32 or bfloat16, not {dtype}")
    family = config.text.get("model_type")
    if family not in FAMILIES or find_family_table(config) is None:
        raise CkptcheckError(
            f"{target} is a model of the type {family}, and the Megatron trainer builds {', '.join(FAMILIES)}",
            hint="--trainer transformers takes any model that transformers has",
        )
    geometry, rope = ModelDimensions.from_config(config), _rope_parameters(config)
    numbers = {
        "num_layers": geometry.layers,
        "hidden_size": geometry.hidden,
        "ffn_hidden_size": config.integer(*INTERMEDIATE),
        "num_attention_heads": geometry.heads,
        "num_query_groups": geometry.kv_heads,
        "kv_channels": geometry.head_dim,
    }
    vocabulary = geometry.vocab_size
    missing_names = [name for name, value in (*numbers.items(), ("vocab_size", vocabulary)) if not value or value < 1]
    if missing_names or vocabulary is None:
        raise CkptcheckError(f"{config.file} of {target} does not say what Megatron calls {missing_names[0]}")
    if (reason := _why_not_megatron(config, family)) is not None:
        raise CkptcheckError(f"Megatron's model would not be the same as {target}: {reason}")
    model_config: dict[str, Any] = {
        **numbers,
        "layernorm_epsilon": config.get("rms_norm_eps", 1e-6),
        "qk_layernorm": family.startswith("qwen3"),
        "add_qkv_bias": family == "qwen2" or bool(config.get("attention_bias")),
    }
    if family == "qwen3_moe":
        model_config |= _expert_settings(config, geometry, target)
    _check_even_split(model_config, layout, target)
    return {
        "config": model_config,
        "layout": {
            "tp": layout.tp,
            "pp": layout.pp,
            "ep": layout.ep,
            "etp": layout.expert_tp,
            "world": layout.world_size,
        },
        "dtype": dtype,
        "head_fp32": head_fp32,
        "vocabulary": vocabulary,
        "padded_vocabulary": -(-vocabulary // layout.tp) * layout.tp,
        "positions": config.integer("max_position_embeddings") or 2048,
        "tied": bool(config.get("tie_word_embeddings", False)),
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        "rope_scaling": rope.get("factor") if _rope_kind(rope) == "llama3" else None,
    }


def megatron_table(config: Config) -> dict[str, dict[str, Any]]:
    """Return Megatron's name, with {} for numbers → layout and Hugging Face names, for the worker."""
    table = find_family_table(config)
    entries = table.megatron if table else {}
    return {
        name: {"layout": WORKER_LAYOUTS[entry.split], "targets": list(entry.targets)} for name, entry in entries.items()
    }


def _rope_parameters(config: Config) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope if isinstance(rope, dict) else {}


def _rope_kind(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _why_not_megatron(config: Config, family: str) -> str | None:
    """Return a part that the model has and Megatron's model lacks; None without one."""
    rope = _rope_parameters(config)
    kind = _rope_kind(rope)
    if kind not in ("default", "llama3"):
        return f"rotary embeddings of the kind {kind} are not Megatron's"
    if kind == "llama3" and any(rope.get(name, value) != value for name, value in LLAMA3.items()):
        return "Megatron has the constants of Llama 3's rotary embedding built in, and this model has others"
    if config.get("mlp_bias"):
        return "it has biases in the feed-forward layers"
    if family == "llama" and config.get("attention_bias"):
        return "its attention has a bias on the output"
    if config.get("hidden_act", "silu") != "silu":
        return f"its activation is {config.get('hidden_act')}"
    if config.get("use_sliding_window") or (family == "mistral" and config.get("sliding_window")):
        return "its attention looks through a sliding window"
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        return f"it rotates only {partial} of each head"
    if family == "qwen3_moe" and not config.get("norm_topk_prob", False):
        return "its router does not normalise the weights of the chosen experts (norm_topk_prob)"
    return None


def _expert_settings(config: Config, geometry: ModelDimensions, target: str) -> dict[str, Any]:
    experts_per_token, width = config.integer("num_experts_per_tok"), config.integer("moe_intermediate_size")
    if not geometry.experts or not experts_per_token or not width or not geometry.layers:
        raise CkptcheckError(
            f"{config.file} of {target} does not say how many experts there are, how wide, and how many a token takes"
        )
    sparse_step, dense_layers = config.integer("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    layer_pattern = [
        int(layer not in dense_layers and (layer + 1) % sparse_step == 0) for layer in range(geometry.layers)
    ]
    return {
        "num_moe_experts": geometry.experts,
        "moe_router_topk": experts_per_token,
        "moe_ffn_hidden_size": width,
        "moe_layer_freq": layer_pattern,
    }


def _check_even_split(model_config: dict[str, Any], layout: ParallelLayout, target: str) -> None:
    """Raise CkptcheckError if the ranks cannot share the model evenly."""
    for name, rank_count, description in (
        ("num_query_groups", layout.tp, "groups of queries (num_key_value_heads)"),
        ("ffn_hidden_size", layout.tp, "columns of the feed-forward layers"),
        ("num_layers", layout.pp, "layers"),
        ("num_moe_experts", layout.ep, "experts"),
        ("moe_ffn_hidden_size", layout.expert_tp, "columns of an expert"),
    ):
        size = model_config.get(name)
        if name == "num_moe_experts" and rank_count > 1 and size is None:
            raise CkptcheckError(f"{target} has no experts that {layout} could share")
        if rank_count < 1 or (size is not None and size % rank_count):
            raise CkptcheckError(f"{target} has {size} {description}, which {layout} cannot share evenly")
