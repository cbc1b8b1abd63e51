"""Reward, value and classification heads: which architectures have one, and how many labels it has."""

from __future__ import annotations

from ckptcheck.checkpoint.config import Config

SCORERS = ("ForSequenceClassification", "ForTokenClassification", "RewardModel", "ForRewardModel", "ForScore")
VALUE_HEADS = ("value_head.weight", "v_head.weight", "v_head.summary.weight", "critic_head.weight")
DEFAULT_LABELS = 2
"""Labels that transformers assumes where the config declares none (`PreTrainedConfig.num_labels`)."""


def is_scorer(config: Config | None) -> bool:
    """Whether the architecture has a head that scores sequences or tokens."""
    return config is not None and (config.architecture or "").endswith(SCORERS)


def is_language_model(config: Config | None) -> bool:
    """Whether the architecture has a language-modelling head."""
    return config is not None and (config.architecture or "").endswith(("ForCausalLM", "LMHeadModel"))


def count_labels(config: Config) -> int:
    """Count the labels that the config declares, as transformers does."""
    named = config.value.get("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    number = config.value.get("num_labels")
    return number if type(number) is int else DEFAULT_LABELS
