"""Which rows a model reads at its input, and which it must tell apart at its output: not the same tokens.

The head's row of a token that only ever stands in a prompt is never trained, and that is no defect: no loss asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.phrase import ranges

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PLACEHOLDER = re.compile(
    r"(image|img|video|audio|vision|speech|media)(_(context|pad|patch|placeholder|soft))?_token_(id|index)"
)
"""Settings of composite models (Qwen2-VL, Gemma 3, InternVL, Kimi-VL). The starts and ends of images are tokens like others."""


def placeholders(ckpt: Checkpoint) -> frozenset[int]:
    """Return the tokens whose rows the output of an encoder replaces, so that training never reaches them."""
    levels = (ckpt.config.value, ckpt.config.text) if ckpt.config is not None else ()
    return frozenset(
        value
        for level in levels
        for key, value in level.items()
        if PLACEHOLDER.fullmatch(key) and type(value) is int  # a bool is no token
    )


def needed(ckpt: Checkpoint, name: str) -> dict[int, str]:
    """Return the tokens whose rows in the embedding or the head training has to reach → why. May raise Skip (template).

    Empty for other matrices and without a tokenizer. What a template only mentions proves nothing, and neither does a bos
    that no template emits: Yi declares one that it never used.
    """
    found: dict[int, str] = {}
    if name == ckpt.anatomy.embedding:
        found |= _read(ckpt)
    if name == writes_with(ckpt):
        found |= stops(ckpt) | _turn_end(ckpt)
    return found


def writes_with(ckpt: Checkpoint) -> str | None:
    """Return the matrix whose rows score the next token: the head, the embedding where it is tied, None without one."""
    anatomy = ckpt.anatomy
    if anatomy.head is not None and anatomy.tied is not True:
        return anatomy.head
    return anatomy.embedding if anatomy.tied and not anatomy.scores else None


def knows_ids(ckpt: Checkpoint) -> bool:
    """Whether the ids of all tokens are known; of SentencePiece and tiktoken files they are not read."""
    tokenizer = ckpt.tokenizer
    return tokenizer is not None and tokenizer.vocabulary is not None and tokenizer.vocabulary.readable


def words(ckpt: Checkpoint, rows: Iterable[int]) -> list[int]:
    """Return the rows of ordinary words: tokens that nobody added, reserved or gave a part, so that any text may hold them."""
    tokenizer = ckpt.tokenizer
    if tokenizer is None or not knows_ids(ckpt):
        return []
    return [
        row
        for row in rows
        if (name := tokenizer.name(row)) is not None
        and name not in tokenizer.added
        and not tokenizer.is_reserved(row)
        and not tokenizer.is_special(row)
    ]


def named(ckpt: Checkpoint) -> dict[int, str]:
    """Return the ids that generation_config.json and config.json name as bos or eos → why, with or without a tokenizer."""
    if ckpt.config is None:
        return {}
    from ckptcheck.checkpoint.tokenizer import Tokenizer

    settings = (ckpt.tokenizer or Tokenizer.read(ckpt)).settings
    return {
        role.id: f"it is {role.name} of {role.file}"
        for role in reversed(settings)  # the first reason counts
        if role.id is not None and not role.name.startswith("pad")
    }


def reads_only(ckpt: Checkpoint, name: str) -> bool:
    """Whether the embedding is surely not the output as well: there is a head of its own, or none at all."""
    anatomy = ckpt.anatomy
    return name != writes_with(ckpt) and (anatomy.head is not None or bool(anatomy.scores) or anatomy.tied is False)


def stops(ckpt: Checkpoint) -> dict[int, str]:
    """Return the tokens at which engines stop → why: of generation_config.json, else config.json, else the tokenizer."""
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        return {}
    for file in ("generation_config.json", "config.json"):
        if numbers := tokenizer.eos(file):
            return dict.fromkeys(sorted(numbers), f"it is eos_token_id of {file}")
    own = tokenizer.tokenizer_eos
    return {own.id: f"it is eos_token of {own.file}"} if own is not None and own.id is not None else {}


def idle(ckpt: Checkpoint) -> frozenset[int]:
    """Return the ids of the padding and the unknown token that are nothing else: nobody minds their rows at the input."""
    tokenizer = ckpt.tokenizer
    roles = (*tokenizer.settings, *tokenizer.roles) if tokenizer is not None else ()
    parts = {
        mute: {role.id for role in roles if role.name.startswith(("pad", "unk")) is mute} for mute in (True, False)
    }
    return frozenset(number for number in parts[True] - parts[False] if number is not None) - _read(ckpt).keys()


def listed(ckpt: Checkpoint, rows: Iterable[int]) -> str:
    """Name a few tokens and their ids."""
    tokenizer = ckpt.tokenizer
    numbers = sorted(rows)
    names = [f"{row} {name}" for row in numbers[:4] if tokenizer is not None and (name := tokenizer.name(row))]
    if len(names) == len(numbers):
        return ", ".join(names)
    return ranges(numbers) + (f" ({', '.join(names)}, …)" if names else "")


def _read(ckpt: Checkpoint) -> dict[int, str]:
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        return {}
    emitted = {
        tokenizer.ids[token]: reason
        for token, reason in tokenizer.template_tokens.items()
        if reason.endswith("emits it")
    }
    return {row: reason for row, reason in (emitted | _turn_end(ckpt)).items() if row not in placeholders(ckpt)}


def _turn_end(ckpt: Checkpoint) -> dict[int, str]:
    tokenizer = ckpt.tokenizer
    if tokenizer is None or tokenizer.turn_end not in tokenizer.ids:
        return {}
    return {tokenizer.ids[tokenizer.turn_end]: "it ends the assistant's turn in the chat template"}
