"""Reads the roles of special tokens (BOS, EOS, padding, …) from the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptcheck.checkpoint.config import Config

NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""The roles for which tokenizer_config.json gives tokens."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The roles for which config.json and generation_config.json give token ids."""


@dataclass(frozen=True)
class TokenRole:
    """A role that a file gives to a token."""

    name: str
    """The key in the file: ``eos_token``, ``eos_token_id``."""
    file: str
    token: str | None = None
    """The token's text, where the file gives that."""
    id: int | None = None
    """The token's id, where the file or the vocabulary gives it."""


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
