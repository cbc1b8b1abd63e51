"""What servers answer, as far as it is looked at: one answer, or one event of a stream, in OpenAI's form or /generate's."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ckptcheck.checkpoint.document import clipped
from ckptcheck.rollouts.build import Misfit
from ckptcheck.rollouts.json_text import Unlike, converted, word


class Token(msgspec.Struct):
    """One token of a chat."""

    logprob: float | None
    token: str = ""


class Said(msgspec.Struct):
    """The logprobs of a choice: `content` of a chat, the rest of a completion."""

    content: list[Token] | None = None
    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class Choice(msgspec.Struct):
    """finish_reason: null until the last event of a stream."""

    index: int | None = 0
    finish_reason: str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    logprobs: Said | None = None


class Span(msgspec.Struct):
    """Tokens [start, end) of a response and their weight version."""

    version: Any
    start: int
    end: int


Scored = tuple[float | None, int, Any]
"""Logprob, id, text."""


class Told(msgspec.Struct):
    """`meta_info` of /generate; `metadata` of SGLang's answers in OpenAI's form has the versions too."""

    id: Any = None
    finish_reason: Any = UNSET
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_token_logprobs: list[Scored] | None = None
    output_token_logprobs: list[Scored] | None = None
    weight_version: Any = None
    weight_versions: list[Span] | None = None


class Answer(msgspec.Struct):
    """meta_info is there in /generate's form, choices in OpenAI's."""

    id: Any = None
    object: Any = None
    index: Any = None
    model: Any = None
    choices: list[Choice] | None = None
    prompt_token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    meta_info: Told | None = None
    metadata: Told | None = None

    @property
    def key(self) -> tuple[str, int] | None:
        """What all events of an answer have in common; None where it has no id."""
        own = self.id if self.meta_info is None else self.meta_info.id
        # a batch that SGLang streams says by `index` which of its answers an event is of
        return (own, self.index if type(self.index) is int else 0) if isinstance(own, str) and own else None

    @property
    def told(self) -> set[int]:
        """Which choices it is of; that of /generate's form is 0."""
        return {0} if self.meta_info is not None else {choice.index or 0 for choice in self.choices or ()}

    @property
    def finished(self) -> set[int]:
        """Which of them end with it."""
        if self.meta_info is not None:
            return {0} if self.meta_info.finish_reason not in (None, UNSET) else set()
        return {choice.index or 0 for choice in self.choices or () if choice.finish_reason not in (None, UNSET)}

    @property
    def streamed(self) -> bool:
        """Whether it says of itself that it is an event and not the last: a chunk, or the reason why it ended is null."""
        if self.meta_info is not None:
            return self.meta_info.finish_reason is None
        if isinstance(self.object, str) and self.object.startswith("chat.completion"):
            return self.object == "chat.completion.chunk"
        return any(choice.finish_reason is None for choice in self.choices or ())


def answer(content: Any) -> Answer:
    """Read one answer. Raises Misfit where it is none, or tells of an error."""
    if isinstance(content, Misfit):
        raise content
    if not isinstance(content, dict):
        raise Misfit("it is no JSON object")
    error = content.get("error") or (content.get("object") == "error" and content)
    if error:
        said = error.get("message") if isinstance(error, dict) else error
        text = " ".join(word(said or "it says no more").split())
        raise Misfit(f"the server answered with an error: {clipped(text)}")
    if content.get("choices") is None and content.get("meta_info") is None:
        raise Misfit(
            "it has no choices" if "choices" in content else "it is no answer: it has no choices and no meta_info"
        )
    try:
        return converted(content, Answer)
    except Unlike as error:
        raise Misfit(str(error)) from error
