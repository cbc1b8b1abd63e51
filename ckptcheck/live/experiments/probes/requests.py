"""Probes of an engine alone: whether it keeps to max_model_len, ends at stop tokens, and tokenises like the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.capabilities import find_able, why_unable
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.errors import RemoteError

LIMIT = 48
"""The max_model_len that the probe starts the engine with, in tokens."""


@dataclass(frozen=True)
class LengthResult:
    """The lengths that the engine accepted."""

    limit: int
    """max_model_len, in tokens."""
    prompt: int
    """Tokens of the prompt."""
    response: int
    """Tokens of the response."""
    finish: str
    """The engine's finish reason."""
    refusal: str = ""
    """The engine's message where it refused a request beyond the limit; "" where it accepted it and cut the response."""

    @property
    def section(self) -> Section:
        """One line with the lengths."""
        beyond = f"a request that goes beyond is refused: {self.refusal}" if self.refusal else "a response is cut there"
        return Section(
            f"max_model_len {self.limit}",
            lines=(f"prompt {self.prompt} + response {self.response} = {self.prompt + self.response}; {beyond}",),
        )


def measure_length(environment: ProbeEnvironment) -> ProbeRun:
    """Request more tokens than fit; if the engine refuses that, request exactly as many as fit."""
    engine = yield replace(environment.setup, length=LIMIT)
    prompt = tuple(environment.prompts[0] * LIMIT)[: LIMIT - 8]
    sampling, refusal = Sampling(0.0, max_tokens=4 * LIMIT, ignore_eos=True), ""
    try:
        generation = engine.generate([prompt], sampling)[0]
    except RemoteError as error:
        refusal = error.remote_message.strip().partition("\n")[0].partition(". ")[0] or error.exception_type
        generation = engine.generate([prompt], replace(sampling, max_tokens=LIMIT - len(prompt)))[0]
    return LengthResult(LIMIT, len(prompt), len(generation.tokens), generation.finish_reason, refusal)


@dataclass(frozen=True)
class StopTokensResult:
    """What the engine did after each stop token."""

    stop_tokens: dict[int, str]
    """Id of a stop token → the file that names it."""
    ignored_tokens: tuple[int, ...]
    """Stop tokens after which the engine continued."""
    finish: dict[int, str]
    """Id of a stop token → the engine's finish reason."""


def force_stop_tokens(environment: ProbeEnvironment) -> ProbeRun:
    """Force each stop token within a response that has more tokens to come."""
    if not environment.stop_tokens:
        raise Skip("no file of the checkpoint says which token ends a response")
    engine = yield environment.setup.with_switches(text=True)
    ignored_tokens, finish = [], {}
    ordinary = next(
        token for token in range(8, 8 + len(environment.stop_tokens) + 1) if token not in environment.stop_tokens
    )
    for token in environment.stop_tokens:
        generation = engine.force_decode(environment.prompts[0], [ordinary, token, ordinary, ordinary])
        finish[token] = generation.finish_reason
        if len(generation.tokens) > 2:
            ignored_tokens.append(token)
    return StopTokensResult(dict(environment.stop_tokens), tuple(ignored_tokens), finish)


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


def compare_tokens(environment: ProbeEnvironment) -> ProbeRun:
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
    'token 7 stands where 5 is expected, at place 1'
    """
    if list(actual[1:]) == list(expected) and actual[:1] == expected[:1]:
        return f"it begins with token {actual[0]} twice"
    if list(actual[1:]) == list(expected):
        return f"token {actual[0]} stands before it"
    for position, (expected_token, actual_token) in enumerate(zip(expected, actual, strict=False)):
        if expected_token != actual_token:
            return f"token {actual_token} stands where {expected_token} is expected, at place {position}"
    if len(actual) > len(expected):
        return f"it goes on with token {actual[len(expected)]}"
    return f"it ends before token {expected[len(actual)]}"
