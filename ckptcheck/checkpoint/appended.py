"""Tokens that transformers appends to a vocabulary when it loads a tokenizer, because tokenizer_config.json names them.

Source: transformers 5.23, tokenization_utils_base.py (`_from_pretrained`, `__init__`) and tokenization_utils_tokenizers.py
(`TokenizersBackend.__init__`): those that tokenizer.json lacks get the next ids, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.special_tokens import content
from ckptcheck.checkpoint.vocabulary import Vocabulary

ATTRIBUTES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The parts in transformers' order (`SPECIAL_TOKENS_ATTRIBUTES`), in which they are appended, before all others."""


def appended_tokens(vocabulary: Vocabulary, parts: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, int]:
    """Return token → id of those that a vocabulary lacks. parts: name (``eos_token``) → token; settings: the config."""
    wanted: list[str | None] = [parts[name] for name in ATTRIBUTES if name in parts]
    wanted += [
        value
        for name, value in settings.items()
        if name.endswith("_token") and name not in ATTRIBUTES and isinstance(value, str)
    ]
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(listed, dict):
        listed = list(listed.values())
    wanted += [content(token) for token in listed] if isinstance(listed, list) else []
    found = vocabulary.with_tokens((token, True) for token in wanted if token and token not in vocabulary.ids)
    return {token.content: token.id for token in found.added if token.content not in vocabulary.ids}
