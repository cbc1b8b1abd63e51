"""The answers of servers, as far as the converter reads them.

An answer has either OpenAI's form or that of SGLang's /generate.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.build import UnusableSequence
from ckptcheck.rollouts.json_text import WrongType, convert_json, to_printable


class TokenLogprob(msgspec.Struct):
    """One token of a chat."""

    logprob: float | None
    token: str = ""


class ChoiceLogprobs(msgspec.Struct):
    """The logprobs of a choice: `content` of a chat, the rest of a completion."""

    content: list[TokenLogprob] | None = None
    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class Choice(msgspec.Struct):
    """One choice of an answer in OpenAI's form."""

    index: int | None = 0
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    routed_experts: Any = None
    logprobs: ChoiceLogprobs | None = None


class Span(msgspec.Struct):
    """Tokens [start, end) of a response and their weight version."""

    version: Any
    start: int
    end: int


ScoredToken = tuple[float | None, int, Any]
"""Logprob, id, text."""


class MetaInfo(msgspec.Struct):
    """`meta_info` of /generate. `metadata` of SGLang's answers in OpenAI's form holds the weight versions too."""

    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_token_logprobs: list[ScoredToken] | None = None
    output_token_logprobs: list[ScoredToken] | None = None
    weight_version: Any = None
    weight_versions: list[Span] | None = None


class Answer(msgspec.Struct):
    """One answer: `meta_info` is set in /generate's form, `choices` in OpenAI's."""

    model: Any = None
    choices: list[Choice] | None = None
    prompt_token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    metadata: MetaInfo | None = None


def parse_answer(content: Any) -> Answer:
    """Read one answer. Raises UnusableSequence where the content is none, or the server reports an error."""
    if isinstance(content, UnusableSequence):
        raise content
    if not isinstance(content, dict):
        raise UnusableSequence("it is no JSON object")
    error = content.get("error") or (content.get("object") == "error" and content)
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        text = " ".join(to_printable(message or "it says no more").split())
        raise UnusableSequence(f"the server answered with an error: {clip(text)}")
    if content.get("choices") is None and content.get("meta_info") is None:
        raise UnusableSequence(
            "it has no choices" if "choices" in content else "it is no answer: it has no choices and no meta_info"
        )
    try:
        return convert_json(content, Answer)
    except WrongType as error:
        raise UnusableSequence(str(error)) from error
