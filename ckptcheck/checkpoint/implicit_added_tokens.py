"""Finds the tokens that transformers silently adds to a vocabulary because tokenizer_config.json names them.

Source: transformers 5.23, tokenization_utils_base.py (`_from_pretrained`, `__init__`) and tokenization_utils_tokenizers.py
(`TokenizersBackend.__init__`): tokens that tokenizer.json lacks get the next ids, without a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.special_tokens import token_content
from ckptcheck.checkpoint.vocabulary import Vocabulary

ATTRIBUTES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Roles in the order of transformers (`SPECIAL_TOKENS_ATTRIBUTES`); their tokens are added in this order, before all others."""


def find_implicit_added_tokens(
    vocabulary: Vocabulary, parts: Mapping[str, str], settings: Mapping[str, Any]
) -> dict[str, int]:
    """Map each token that transformers adds to the id that it gets.

    Args:
        vocabulary: the tokens of tokenizer.json.
        parts: role (``eos_token``) → token.
        settings: tokenizer_config.json.
    """
    candidates: list[str | None] = [parts[name] for name in ATTRIBUTES if name in parts]
    candidates += [
        value
        for name, value in settings.items()
        if name.endswith("_token") and name not in ATTRIBUTES and isinstance(value, str)
    ]
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(listed, dict):
        listed = list(listed.values())
    candidates += [token_content(token) for token in listed] if isinstance(listed, list) else []
    extended = vocabulary.with_tokens((token, True) for token in candidates if token and token not in vocabulary.ids)
    return {token.content: token.id for token in extended.added if token.content not in vocabulary.ids}
