"""Which token plays which part, and which of a checkpoint's files says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptcheck.checkpoint.config import Config

NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""The parts that tokenizer_config.json names tokens for."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The parts that config.json and generation_config.json give ids for."""


@dataclass(frozen=True)
class Role:
    """A part that a file gives a token: name (``eos_token``), where it stands, and the token as it is said there."""

    name: str
    file: str
    token: str | None = None
    id: int | None = None


def named(parts: list[Config], ids: Mapping[str, int]) -> tuple[Role, ...]:
    """Return the parts that the files name tokens for; the first file that says anything of a part decides."""
    found = []
    for name in NAMES:
        part = next((part for part in parts if name in part.value), None)
        if part is not None and (token := content(part.value[name])) is not None:
            found.append(Role(name, part.file, token, ids.get(token)))
    return tuple(found)


def numbered(parts: list[Config]) -> tuple[Role, ...]:
    """Return the parts that the files give ids for, each file for itself; a list of ids gives several."""
    found: list[Role] = []
    for part in parts:
        for name in IDS:
            value = part.get(name)
            given = value if isinstance(value, list) else [value]
            found += [Role(name, part.file, id=number) for number in given if type(number) is int]
    return tuple(found)


def content(value: object) -> str | None:
    """Return a token as tokenizer_config.json writes it: a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
