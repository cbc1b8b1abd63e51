"""Decodes rollouts, renders and tokenizes them again, and compares the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.conversation_format import Conversation, learn_format, render_conversations

if TYPE_CHECKING:
    from ckptcheck.rollouts.prompts import PromptTokenizer
    from ckptcheck.rollouts.rollouts import Rollouts

SEQUENCES = 256
"""Number of sequences to decode, from the first on."""
SHOWN = 24
"""Characters of a difference that the message shows."""


@dataclass(frozen=True)
class OtherToken:
    """The first token of a sequence that a round trip through text changes."""

    sequence: int
    position: int
    """Its place in the sequence, from 0."""
    token: int
    other: int | None
    """The token in its place; None: there is none."""


@dataclass(frozen=True)
class OtherRendering:
    """A sequence whose text differs from a new rendering of its conversation by the template."""

    sequence: int
    position: int
    """Number of tokens before the first difference."""
    role: str
    """Role of the turn in which the difference is, or that begins after it."""
    turn: int
    """Number of this turn, from 0."""
    recorded: str
    """The recorded text from the difference on, at most `SHOWN` characters."""
    rendered: str
    """The rendered text from there on."""
    drops_thinking: bool
    """Whether the recorded turn has a </think> that the rendered conversation lacks."""


@dataclass(frozen=True)
class TokenRoundTrip:
    """The result for all sequences."""

    sequences: int
    """Number of sequences that went through the tokenizer."""
    other_tokens: tuple[OtherToken, ...]
    conversations: int
    """Number of sequences that could be read as a conversation of the template."""
    other_renderings: tuple[OtherRendering, ...]


def take_round_trip(rollouts: Rollouts, reader: PromptTokenizer) -> TokenRoundTrip:
    """Decode the first sequences, tokenize their text again, and render their conversations again. Raises Skip."""
    tokenizer = reader.tokenizer
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    texts: dict[int, str] = {}
    other_tokens = []
    for sequence in range(min(SEQUENCES, rollouts.sequence_count)):
        tokens = rollouts.tokens[rollouts.sequence(sequence)].tolist()
        if not tokens or min(tokens) < 0 or max(tokens) >= size:
            continue
        texts[sequence] = str(tokenizer.decode(tokens, skip_special_tokens=False))
        again = reader.tokenize(texts[sequence])
        place = _first_difference(tokens, again)
        if place is not None and place < len(tokens):
            other = again[place] if place < len(again) else None
            other_tokens.append(OtherToken(sequence, place, tokens[place], other))
    if not texts:
        raise Skip("no sequence has tokens of the tokenizer alone")
    found: list[OtherRendering] = []
    conversations: dict[int, Conversation] = {}
    layout = None if reader.template is None else learn_format(reader.template, reader.variables)
    if reader.template is not None and layout is not None:
        parsed = {sequence: layout.parse(text) for sequence, text in texts.items()}
        conversations = {sequence: talk for sequence, talk in parsed.items() if talk is not None}
        rendered = render_conversations(
            reader.template,
            reader.variables,
            [talk.messages for talk in conversations.values()],
            generation_prompt=True,
        )
        for (sequence, talk), text in zip(conversations.items(), rendered, strict=True):
            if text is not None and not texts[sequence].startswith(text):
                tokens = rollouts.tokens[rollouts.sequence(sequence)].tolist()
                found.append(_describe_difference(sequence, talk, texts[sequence], text, tokens, reader))
    return TokenRoundTrip(len(texts), tuple(other_tokens), len(conversations), tuple(found))


def _first_difference(one: list[int] | str, other: tuple[int, ...] | str) -> int | None:
    """Return the first place where two sequences differ; None where they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _describe_difference(
    sequence: int, talk: Conversation, recorded: str, rendered: str, tokens: list[int], reader: PromptTokenizer
) -> OtherRendering:
    place = _first_difference(recorded, rendered) or 0
    turn = max((number for number, start in enumerate(talk.starts) if start <= place), default=0)
    end = talk.starts[turn + 1] if turn + 1 < len(talk.starts) else talk.last_answer
    thought = recorded[talk.starts[turn] : end].partition("</think>")
    return OtherRendering(
        sequence,
        _count_tokens(place, tokens, reader),
        str(talk.messages[turn]["role"]),
        turn,
        recorded[place : place + SHOWN],
        rendered[place : place + SHOWN],
        bool(thought[1]) and thought[0].strip() not in rendered,
    )


def _count_tokens(characters: int, tokens: list[int], reader: PromptTokenizer) -> int:
    """Return how many of the first tokens make a text of at most so many characters."""
    fewest, most = 0, len(tokens)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if len(reader.tokenizer.decode(tokens[:middle], skip_special_tokens=False)) <= characters:
            fewest = middle
        else:
            most = middle - 1
    return fewest
