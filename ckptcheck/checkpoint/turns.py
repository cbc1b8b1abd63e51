"""How a chat template ends the assistant's turn, seen in what it makes of small conversations.

What stands between an answer and the next question is the end of the one turn and the beginning of the other. The
beginning also stands before a first question, and at the end of a conversation there is none: so the two are told apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.checkpoint.chat_template import AGAIN, ANSWER, QUESTION, ChatTemplate, first_marker, markers


@dataclass(frozen=True)
class Turns:
    """The turns of one template. special: the control tokens; stops: those at which some file says that generation ends."""

    template: ChatTemplate
    special: Collection[str] = field(repr=False)
    stops: Collection[str]

    def _after_answer(self, conversation: str) -> str:
        _, answered, rest = self.template.rendered.get(conversation, "").rpartition(ANSWER)
        return rest if answered else ""

    @cached_property
    def _closing(self) -> str:
        """What follows an answer at the end of a conversation."""
        return self._after_answer("answered")

    @cached_property
    def _between(self) -> str:
        """What stands between an answer and the next question."""
        return self._after_answer("asked again").partition(AGAIN)[0]

    @cached_property
    def _leaving(self) -> list[str]:
        """The control tokens of `_between` without those that begin the question: those stand before the first one too."""
        found = markers(self._between, self.special)
        before = markers(self.template.rendered.get("asked, no prompt", "").partition(QUESTION)[0], self.special)
        while found and before and found[-1] == before[-1]:
            found.pop()
            before.pop()
        return found

    @cached_property
    def _header(self) -> str | None:
        """The next turn's first token, where nothing else ends an answer and some file says that it does (GLM)."""
        first = first_marker(self._between, self.special)
        return first if first in self.stops and not markers(self._closing, self.special) and not self._leaving else None

    @cached_property
    def end(self) -> str | None:
        """The control token that closes an answer; None where it cannot be told or is ordinary text."""
        closing, between = (first_marker(text, self.special) for text in (self._closing, self._between))
        return closing or (between if between in self._leaving else self._header)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """All control tokens that belong to the end of an answer: whatever stops at one of them, stops."""
        found = [*markers(self._closing, self.special), *self._leaving, *([self._header] if self._header else [])]
        return tuple(dict.fromkeys(found))
