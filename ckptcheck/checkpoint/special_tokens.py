"""Reads the roles of special tokens (BOS, EOS, padding, …) from a checkpoint's files, and finds those that transformers adds.

transformers gives tokens that tokenizer.json lacks the next ids, without a warning. Source: transformers 5.23,
tokenization_utils_base.py (`_from_pretrained`, `__init__`), tokenization_utils_tokenizers.py (`TokenizersBackend.__init__`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.vocabulary import Vocabulary

NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""The roles for which tokenizer_config.json gives tokens."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The roles for which config.json and generation_config.json give token ids."""
ATTRIBUTES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Roles in the order of transformers (`SPECIAL_TOKENS_ATTRIBUTES`); their tokens are added in this order, before all others."""


@dataclass(frozen=True)
class TokenRole:
    """A role that a file gives to a token."""

    name: str
    """The key in the file: ``eos_token``, ``eos_token_id``."""
    file: str
    token: str | None = None
    """The token's text, if the file gives it."""
    id: int | None = None
    """The token's id, if the file or the vocabulary gives it."""


def read_token_roles(parts: list[Config], ids: Mapping[str, int]) -> tuple[TokenRole, ...]:
    """Return the roles for which the files give tokens; the first file that contains the key of a role decides."""
    roles = []
    for name in NAMES:
        part = next((part for part in parts if name in part.value), None)
        if part is not None and (token := token_content(part.value[name])) is not None:
            roles.append(TokenRole(name, part.file, token, ids.get(token)))
    return tuple(roles)


def read_id_roles(parts: list[Config]) -> tuple[TokenRole, ...]:
    """Return the roles for which the files give ids, per file; a list of ids gives one role for each."""
    roles: list[TokenRole] = []
    for part in parts:
        for name in IDS:
            value = part.get(name)
            numbers = value if isinstance(value, list) else [value]
            roles += [TokenRole(name, part.file, id=number) for number in numbers if type(number) is int]
    return tuple(roles)


def token_content(value: object) -> str | None:
    """Return the text of a token from tokenizer_config.json, which writes a string or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def find_implicit_added_tokens(
    vocabulary: Vocabulary, parts: Mapping[str, str], settings: Mapping[str, Any]
) -> dict[str, int]:
    """Map each token that transformers adds to the id that it gets.

    Args:
        vocabulary: the tokens of tokenizer.json.
        parts: role (``eos_token``) → token.
        settings: tokenizer_config.json.
    """
    candidates = list_named_tokens(parts, settings)
    extended = vocabulary.with_tokens((token, True) for token in candidates if token not in vocabulary.ids)
    return {token.content: token.id for token in extended.added if token.content not in vocabulary.ids}


def list_named_tokens(parts: Mapping[str, str], settings: Mapping[str, Any]) -> list[str]:
    """Return the tokens to which tokenizer_config.json gives a role or which it lists as further special tokens.

    Args:
        parts: role (``eos_token``) → token.
        settings: tokenizer_config.json. transformers 5 reads `additional_special_tokens` where `extra_special_tokens` is empty.
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
    return [token for token in candidates if token]
