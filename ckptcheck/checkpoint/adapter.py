"""PEFT adapters: vocabulary rows they carry, ranks their config gives. Format: peft/utils/save_and_load.py."""

from __future__ import annotations

import re

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.tensor import Tensor

VOCABULARY = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|lm_head|embed_out)(\.modules_to_save(\.\w+)?|\.base_layer)?\.weight$"
)


def vocabulary_rows(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Return the whole embeddings and heads among the tensors → their rows."""
    return {
        name: tensor.shape[0] for name, tensor in tensors.items() if VOCABULARY.search(name) and len(tensor.shape) == 2
    }


def rank_of(config: Config, module: str) -> int | None:
    """Return the rank of a module's LoRA: from rank_pattern where a key matches as PEFT matches it, else r."""
    patterns = config.value.get("rank_pattern")
    for pattern, rank in patterns.items() if isinstance(patterns, dict) else ():
        if type(rank) is int and (module.endswith(f".{pattern}") or module == pattern):
            return rank
        if any(sign in pattern for sign in "^$*+?()[]{}|\\"):
            return None  # a regular expression from a checkpoint is not run
    return config.integer("r")
