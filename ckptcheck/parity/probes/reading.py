"""What an engine with a tokenizer can be asked besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Reads(Protocol):
    """An engine that says which tokens it makes of a text and of a conversation."""

    def read(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of both."""
        ...
