"""PEFT adapters: vocabulary rows they carry, ranks their config gives. Format: peft/utils/save_and_load.py."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.document import parse_object
from ckptcheck.checkpoint.header import Tensor
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

VOCABULARY = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|lm_head|embed_out)(\.modules_to_save(\.\w+)?|\.base_layer)?\.weight$"
)
MAX_TOKENIZER = 1 << 28


def vocabulary_rows(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Return the whole embeddings and heads among the tensors → their rows."""
    return {
        name: tensor.shape[0] for name, tensor in tensors.items() if VOCABULARY.search(name) and len(tensor.shape) == 2
    }


def token_count(ckpt: Checkpoint) -> int | None:
    """Return one more than the highest id in tokenizer.json, or the config's vocab_size; None where neither is there.

    Raises Skip when the tokenizer is there and cannot be read as one.
    """
    file = ckpt.files.get("tokenizer.json")
    if file is None or file.leaves is not None:
        return None
    value, _ = parse_object(ckpt.source.read(file.name, 0, min(file.size, MAX_TOKENIZER)))
    model, added = (value.get("model"), value.get("added_tokens", [])) if value else (None, [])
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, (dict, list)) or not isinstance(added, list):
        raise Skip("tokenizer.json is not one that tokenizers writes")
    ids = [number for number in vocab.values() if type(number) is int] if isinstance(vocab, dict) else [len(vocab) - 1]
    ids += [token["id"] for token in added if isinstance(token, dict) and type(token.get("id")) is int]
    return max(ids, default=-1) + 1


def rank_of(config: Config, module: str) -> int | None:
    """Return the rank of a module's LoRA: from rank_pattern where a key matches as PEFT matches it, else r."""
    patterns = config.value.get("rank_pattern")
    for pattern, rank in patterns.items() if isinstance(patterns, dict) else ():
        if type(rank) is int and (module.endswith(f".{pattern}") or module == pattern):
            return rank
        if any(sign in pattern for sign in "^$*+?()[]{}|\\"):
            return None  # a regular expression from a checkpoint is not run
    return config.integer("r")
