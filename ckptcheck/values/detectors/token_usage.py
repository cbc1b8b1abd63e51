"""Finds the tokens whose embedding rows a model reads, and the tokens whose output rows it needs. The two sets differ.

No loss trains the output row of a token that only appears in prompts. Such a row may stay untrained; that is no defect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.text.formatting import format_ranges

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PLACEHOLDER = re.compile(
    r"(image|img|video|audio|vision|speech|media)(_(context|pad|patch|placeholder|soft))?_token_(id|index)"
)
"""Settings of composite models (Qwen2-VL, Gemma 3, InternVL, Kimi-VL) that name a placeholder token. Tokens that mark the start
or the end of an image are ordinary tokens."""


def find_placeholder_tokens(ckpt: Checkpoint) -> frozenset[int]:
    """Return the tokens whose rows the output of an encoder replaces, so that training never reaches them."""
    levels = (ckpt.config.value, ckpt.config.text) if ckpt.config is not None else ()
    return frozenset(
        value
        for level in levels
        for key, value in level.items()
        # bool is a subclass of int, and no token.
        if PLACEHOLDER.fullmatch(key) and type(value) is int
    )


def find_required_tokens(ckpt: Checkpoint, name: str) -> dict[int, str]:
    """Return token → why training has to reach its row in this matrix. Raises Skip if the template cannot be rendered.

    Empty for matrices other than embedding and head, and without a tokenizer. A token that a template only mentions is not
    required, nor is a bos that no template emits: Yi declares one that it never used.
    """
    tokens: dict[int, str] = {}
    if name == ckpt.components.embedding:
        tokens |= _find_input_tokens(ckpt)
    if name == find_output_matrix(ckpt):
        tokens |= find_stop_tokens(ckpt) | _find_turn_end(ckpt)
    return tokens


def find_output_matrix(ckpt: Checkpoint) -> str | None:
    """Return the matrix whose rows score the next token: the head, or the tied embedding; None without either."""
    components = ckpt.components
    if components.lm_head is not None and components.is_tied is not True:
        return components.lm_head
    return components.embedding if components.is_tied and not components.score_head_tensors else None


def has_token_ids(ckpt: Checkpoint) -> bool:
    """Whether the ids of all tokens are known. They are not read from SentencePiece and tiktoken files."""
    tokenizer = ckpt.tokenizer
    return tokenizer is not None and tokenizer.vocabulary is not None and tokenizer.vocabulary.readable


def find_ordinary_rows(ckpt: Checkpoint, rows: Iterable[int]) -> list[int]:
    """Return the rows of ordinary tokens, which any text may hold: not added, not reserved, not special."""
    tokenizer = ckpt.tokenizer
    if tokenizer is None or not has_token_ids(ckpt):
        return []
    return [
        row
        for row in rows
        if (name := tokenizer.token_for(row)) is not None
        and name not in tokenizer.added_tokens
        and not tokenizer.is_reserved(row)
        and not tokenizer.is_special(row)
    ]


def find_config_tokens(ckpt: Checkpoint) -> dict[int, str]:
    """Return token → why, for the bos and eos ids of generation_config.json and config.json, with or without a tokenizer."""
    if ckpt.config is None:
        return {}
    from ckptcheck.checkpoint.special_tokens import read_id_roles

    roles = read_id_roles([part for part in (ckpt.generation_config, ckpt.config) if part is not None])
    # Reversed, so that the first reason stays.
    return {
        role.id: f"it is {role.name} of {role.file}"
        for role in reversed(roles)
        if role.id is not None and not role.name.startswith("pad")
    }


def is_input_only(ckpt: Checkpoint, name: str) -> bool:
    """Whether the embedding is certainly not the output too: the model has a separate head, or none at all."""
    components = ckpt.components
    return name != find_output_matrix(ckpt) and (
        components.lm_head is not None or bool(components.score_head_tensors) or components.is_tied is False
    )


def find_stop_tokens(ckpt: Checkpoint) -> dict[int, str]:
    """Return token at which engines stop → why: from generation_config.json, else config.json, else the tokenizer."""
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        return {}
    for file in ("generation_config.json", "config.json"):
        if numbers := tokenizer.eos_ids(file):
            return dict.fromkeys(sorted(numbers), f"it is eos_token_id of {file}")
    own = tokenizer.eos_role
    return {own.id: f"it is eos_token of {own.file}"} if own is not None and own.id is not None else {}


def find_filler_tokens(ckpt: Checkpoint) -> frozenset[int]:
    """Return the padding and unknown tokens that have no other role. Their embedding rows do not matter."""
    tokenizer = ckpt.tokenizer
    roles = (*tokenizer.id_roles, *tokenizer.roles) if tokenizer is not None else ()
    parts = {
        mute: {role.id for role in roles if role.name.startswith(("pad", "unk")) is mute} for mute in (True, False)
    }
    return (
        frozenset(number for number in parts[True] - parts[False] if number is not None)
        - _find_input_tokens(ckpt).keys()
    )


def format_tokens(ckpt: Checkpoint, rows: Iterable[int]) -> str:
    """Write a few tokens with their ids and names."""
    tokenizer = ckpt.tokenizer
    numbers = sorted(rows)
    names = [f"{row} {name}" for row in numbers[:4] if tokenizer is not None and (name := tokenizer.token_for(row))]
    if len(names) == len(numbers):
        return ", ".join(names)
    return format_ranges(numbers) + (f" ({', '.join(names)}, …)" if names else "")


def _find_input_tokens(ckpt: Checkpoint) -> dict[int, str]:
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        return {}
    emitted = {
        tokenizer.ids[token]: reason
        for token, reason in tokenizer.template_tokens.items()
        if reason.endswith("emits it")
    }
    return {
        row: reason
        for row, reason in (emitted | _find_turn_end(ckpt)).items()
        if row not in find_placeholder_tokens(ckpt)
    }


def _find_turn_end(ckpt: Checkpoint) -> dict[int, str]:
    tokenizer = ckpt.tokenizer
    if tokenizer is None or tokenizer.turn_end not in tokenizer.ids:
        return {}
    return {tokenizer.ids[tokenizer.turn_end]: "it ends the assistant's turn in the chat template"}
