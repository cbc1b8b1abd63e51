"""The common decoder families, whose layers are all alike: every layer of a kind has the same tensors."""

from __future__ import annotations

from ckptcheck.checkpoint.config import Config

FAMILIES = frozenset((
    "llama", "mistral", "ministral3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2",
    "gemma3_text", "olmo", "olmo2", "olmo3", "olmoe", "granite", "cohere", "cohere2", "smollm3", "glm4_moe", "gpt_oss",
    "starcoder2", "hunyuan_v1_dense", "glm", "glm4", "apertus", "arcee",
))  # fmt: skip
"""Values of `model_type` (transformers' modeling files)."""


def family_of(config: Config | None) -> str | None:
    """Return the language model's family; None outside these families."""
    if config is None:
        return None
    model_type = config.text.get("model_type") or config.model_type
    return model_type if isinstance(model_type, str) and model_type in FAMILIES else None
