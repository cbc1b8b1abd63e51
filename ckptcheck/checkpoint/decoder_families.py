"""The common decoder families, whose layers are all alike: every layer of a kind has the same tensors."""

from __future__ import annotations

from typing import Literal

from ckptcheck.checkpoint.config import Config

QKVO: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
FeedForward = Literal["gated", "plain"]
FAMILIES: dict[str, FeedForward] = {
    **dict.fromkeys((
        "llama", "mistral", "ministral3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2",
        "gemma3_text", "olmo", "olmo2", "olmo3", "olmoe", "granite", "cohere", "cohere2", "smollm3", "glm4_moe", "gpt_oss",
        "starcoder2", "hunyuan_v1_dense",
    ), "gated"),
    **dict.fromkeys(("glm", "glm4", "apertus", "arcee"), "plain"),
}  # fmt: skip
"""model_type → whether its dense feed-forward block has a gate_proj (transformers' modeling files)."""


def family_of(config: Config | None) -> FeedForward | None:
    """Return the feed-forward block of the language model's family; None outside these families."""
    if config is None:
        return None
    model_type = config.text.get("model_type") or config.model_type
    return FAMILIES.get(model_type) if isinstance(model_type, str) else None
