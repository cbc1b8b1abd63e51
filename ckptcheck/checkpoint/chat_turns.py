"""Finds the control tokens with which a chat template ends the assistant's turn, from its renderings of small conversations.

The text between an answer and the next question is the end of one turn and the beginning of the next. The beginning also
stands before the first question, and no turn begins at the end of a conversation: so the two can be separated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.checkpoint.chat_template import AGAIN, ANSWER, QUESTION, ChatTemplate, leading_marker, markers
from ckptcheck.checkpoint.token_search import TokenSearch


@dataclass(frozen=True)
class Turns:
    """How one template ends the assistant's turn."""

    template: ChatTemplate
    special: TokenSearch = field(repr=False)
    """The control tokens of the tokenizer."""
    stops: Collection[str]
    """The tokens at which generation ends, according to any of the files."""

    def _after_answer(self, conversation: str) -> str:
        _, answered, rest = self.template.rendered.get(conversation, "").rpartition(ANSWER)
        return rest if answered else ""

    @cached_property
    def _closing(self) -> str:
        """The text after the answer that ends a conversation."""
        return self._after_answer("answered")

    @cached_property
    def _between(self) -> str:
        """The text between an answer and the next question."""
        return self._after_answer("asked again").partition(AGAIN)[0]

    @cached_property
    def _leaving(self) -> list[str]:
        """The control tokens of `_between` that end the answer: those that begin a question precede the first one too."""
        between = markers(self._between, self.special)
        before = markers(self.template.rendered.get("asked, no prompt", "").partition(QUESTION)[0], self.special)
        while between and before and between[-1] == before[-1]:
            between.pop()
            before.pop()
        return between

    @cached_property
    def _header(self) -> str | None:
        """The first token of the next turn, where no other token ends an answer and a file lists it as a stop (GLM)."""
        first = leading_marker(self._between, self.special)
        return first if first in self.stops and not markers(self._closing, self.special) and not self._leaving else None

    @cached_property
    def end(self) -> str | None:
        """The control token that ends an answer; None where ordinary text ends it or nothing shows it."""
        closing, between = (leading_marker(text, self.special) for text in (self._closing, self._between))
        return closing or (between if between in self._leaving else self._header)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """All control tokens at the end of an answer: an engine that stops at any of them stops in time."""
        tokens = [*markers(self._closing, self.special), *self._leaving, *([self._header] if self._header else [])]
        return tuple(dict.fromkeys(tokens))
