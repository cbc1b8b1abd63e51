"""Reward, value and classification heads: which architectures have one, and of what shape."""

from __future__ import annotations

from ckptcheck.checkpoint.config import Config

SCORERS = ("ForSequenceClassification", "ForTokenClassification", "RewardModel", "ForRewardModel", "ForScore")
VALUE_HEADS = ("value_head.weight", "v_head.weight", "v_head.summary.weight", "critic_head.weight")
DEFAULT_LABELS = 2
"""What transformers takes where a config names no labels (`PreTrainedConfig.num_labels`)."""


def is_scorer(config: Config | None) -> bool:
    """Whether the architecture ends in a head that scores sequences or tokens."""
    return config is not None and (config.architecture or "").endswith(SCORERS)


def is_language_model(config: Config | None) -> bool:
    """Whether the architecture ends in a language-modelling head."""
    return config is not None and (config.architecture or "").endswith(("ForCausalLM", "LMHeadModel"))


def labels(config: Config) -> int:
    """How many labels the config declares, as transformers counts them."""
    named = config.value.get("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    number = config.value.get("num_labels")
    return number if type(number) is int else DEFAULT_LABELS
