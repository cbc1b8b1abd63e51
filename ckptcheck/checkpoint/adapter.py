"""PEFT adapters: the vocabulary matrices they carry and the LoRA ranks their config declares.

Format: peft/utils/save_and_load.py.
"""

from __future__ import annotations

import re

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.tensor import Tensor

VOCABULARY = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|lm_head|embed_out)(\.modules_to_save(\.\w+)?|\.base_layer)?\.weight$"
)


def find_vocabulary_rows(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Map each whole embedding or head among the tensors to its number of rows."""
    return {
        name: tensor.shape[0] for name, tensor in tensors.items() if VOCABULARY.search(name) and len(tensor.shape) == 2
    }


def lora_rank(config: Config, module: str) -> int | None:
    """Return the LoRA rank of a module: from `rank_pattern` where a key matches as PEFT matches it, else from `r`.

    None where a key of `rank_pattern` is a regular expression, which is not evaluated, or where `r` is no integer.
    """
    patterns = config.value.get("rank_pattern")
    for pattern, rank in patterns.items() if isinstance(patterns, dict) else ():
        if type(rank) is int and (module.endswith(f".{pattern}") or module == pattern):
            return rank
        # A regular expression from a checkpoint is never run.
        if any(sign in pattern for sign in "^$*+?()[]{}|\\"):
            return None
    return config.integer("r")
