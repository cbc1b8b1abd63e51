"""Reads which tokens the post-processor of a tokenizer.json puts around every text.

Format: tokenizers 0.23 (`TemplateProcessing`, `BertProcessing`, `RobertaProcessing`, and a `Sequence` of them). The library
writes the ids that stand here, and never looks a token up: an id that has no token goes to the model as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FramingToken:
    """A token that comes before or after texts."""

    token: str
    ids: tuple[int, ...] | None
    """What is written for it; None where the post-processor names the token and describes it nowhere."""
    key: str
    """Where tokenizer.json says so."""


def list_framing_tokens(post_processor: Any, key: str = "post_processor") -> Iterator[FramingToken]:
    """Yield the framing tokens of a post-processor, each of them once; nothing for what is of another form."""
    if not isinstance(post_processor, dict):
        return
    kind = post_processor.get("type")
    if kind == "Sequence":
        listed = post_processor.get("processors")
        # a sequence holds no other sequence in any release; one level keeps a hostile file from being followed for long
        for number, part in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(part, dict) and part.get("type") != "Sequence":
                yield from list_framing_tokens(part, f"{key}.processors.{number}")
    elif kind in ("BertProcessing", "RobertaProcessing"):
        for side in ("cls", "sep"):
            pair = post_processor.get(side)
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int:
                yield FramingToken(pair[0], (pair[1],), f"{key}.{side}")
    elif kind == "TemplateProcessing":
        yield from _list_template_tokens(post_processor, key)


def _list_template_tokens(template: dict[str, Any], key: str) -> Iterator[FramingToken]:
    described = template.get("special_tokens")
    described = described if isinstance(described, dict) else {}
    seen: set[str] = set()
    for side in ("single", "pair"):
        pieces = template.get(side)
        for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            special = piece.get("SpecialToken") if isinstance(piece, dict) else None
            name = special.get("id") if isinstance(special, dict) else None
            if not isinstance(name, str) or name in seen:
                continue
            seen.add(name)
            if name not in described:
                yield FramingToken(name, None, f"{key}.{side}.{number}")
                continue
            entry = described[name]
            ids = entry.get("ids") if isinstance(entry, dict) else None
            if isinstance(ids, list) and all(type(each) is int for each in ids):
                yield FramingToken(name, tuple(ids), f"{key}.special_tokens.{name}")
