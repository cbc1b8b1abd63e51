"""Probes whether the engine tokenises a conversation, and its rendered text, like the checkpoint's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.capabilities import find_able, why_unable


@dataclass(frozen=True)
class TokenizationResult:
    """Tokens of one conversation, by the checkpoint's files and by the engine."""

    expected: tuple[int, ...]
    """Tokens by the checkpoint's own template and tokenizer."""
    chat: tuple[int, ...]
    """Tokens that the engine makes of the messages."""
    text: tuple[int, ...]
    """Tokens that the engine makes of the rendered conversation, sent as a plain text."""
    rendered: str
    """The conversation as text, by the checkpoint's own template."""


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Send a conversation to the engine, and its rendered text."""
    if environment.conversation is None:
        raise Skip("the checkpoint has no chat template")
    engine = yield environment.setup.with_switches(text=True)
    able = find_able(engine, "text")
    if able is None:
        raise Skip(why_unable(engine, "text"))
    rendered, expected, messages = environment.conversation
    text, chat = able.tokenize(rendered, messages)
    return TokenizationResult(expected, chat, text, rendered)


def describe_token_difference(expected: Sequence[int], actual: Sequence[int]) -> str:
    """Name the first difference of two token sequences.

    >>> describe_token_difference([1, 5, 6], [1, 1, 5, 6]), describe_token_difference([1, 5], [1, 5, 2])
    ('it begins with token 1 twice', 'it goes on with token 2')
    >>> describe_token_difference([1, 5], [1, 7])
    'token 7 stands where 5 is due, at place 1'
    """
    if list(actual[1:]) == list(expected) and actual[:1] == expected[:1]:
        return f"it begins with token {actual[0]} twice"
    if list(actual[1:]) == list(expected):
        return f"token {actual[0]} stands before it"
    for position, (expected_token, actual_token) in enumerate(zip(expected, actual, strict=False)):
        if expected_token != actual_token:
            return f"token {actual_token} stands where {expected_token} is due, at place {position}"
    if len(actual) > len(expected):
        return f"it goes on with token {actual[len(expected)]}"
    return f"it ends before token {expected[len(actual)]}"
