"""Decodes rollouts, renders and tokenizes them again, and compares the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.prompts import Message, render_conversations

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
        for (sequence, talk), (text, _) in zip(conversations.items(), rendered, strict=True):
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


MARKS = ("\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4")
"""Private Unicode characters that stand for the texts of the turns."""


@dataclass(frozen=True)
class Conversation:
    """The turns of a text, up to the answer that ends it."""

    messages: tuple[Message, ...]
    """The turns before the last answer."""
    starts: tuple[int, ...]
    """Where the text of each of these turns begins, in characters."""
    last_answer: int
    """Where the last answer begins."""


@dataclass(frozen=True)
class ConversationFormat:
    """What a chat template writes before, between and after turns."""

    openings: tuple[tuple[str, str], ...]
    """(text before the first turn, its role), the longest first."""
    system_end: str
    """Text between the system prompt and the first question; "" where the template takes no system prompt."""
    answer_start: str
    """Text between a question and its answer."""
    question_start: str
    """Text between an answer and the next question."""
    result_start: str
    """Text between an answer and the result of a tool; "" where the template takes none."""
    result_end: str
    """Text between the result of a tool and the next answer."""

    def parse(self, text: str) -> Conversation | None:
        """Return the turns of a text; None where it does not begin as the template does, or has no answer."""
        opening = next(((before, role) for before, role in self.openings if text.startswith(before)), None)
        if opening is None:
            return None
        messages: list[Message] = []
        starts: list[int] = []
        place, role = len(opening[0]), opening[1]
        while True:
            following = [
                (at, len(separator), next_role)
                for separator, next_role in self._list_separators(role)
                if separator and (at := text.find(separator, place)) >= 0
            ]
            if role == "assistant" and not following:
                return Conversation(tuple(messages), tuple(starts), place)
            if not following:
                return None
            at, length, next_role = min(following)
            messages.append({"role": role, "content": text[place:at]})
            starts.append(place)
            place, role = at + length, next_role

    def _list_separators(self, role: str) -> list[tuple[str, str]]:
        """Return (text, role of the next turn) of what can follow a turn."""
        return {
            "system": [(self.system_end, "user")],
            "user": [(self.answer_start, "assistant")],
            "tool": [(self.result_end, "assistant")],
            "assistant": [(self.question_start, "user"), (self.result_start, "tool")],
        }[role]


def learn_format(template: str, variables: dict[str, str]) -> ConversationFormat | None:
    """Render a few conversations, and return what stands between their turns; None where the template does not take them.

    Raises Skip where templates cannot be rendered here.
    """
    system, question, answer, again, more = MARKS
    plain = [("user", question), ("assistant", answer), ("user", again), ("assistant", more)]
    asked = [("user", question), ("assistant", answer), ("tool", again), ("assistant", more)]
    rendered = render_conversations(
        template, variables,
        [_to_messages(turns) for turns in (plain, [("system", system), *plain], asked)],
        generation_prompt=False,
    )  # fmt: skip
    pieces = [None if text is None else _split(text) for text, _ in rendered]
    if pieces[0] is None or len(pieces[0]) != 5:
        return None
    before, answer_start, question_start, *_ = pieces[0]
    if not answer_start or not question_start:
        return None
    openings = [(before, "user")]
    system_end = ""
    if pieces[1] is not None and len(pieces[1]) == 6 and pieces[1][1]:
        openings.append((pieces[1][0], "system"))
        system_end = pieces[1][1]
    result_start = result_end = ""
    if pieces[2] is not None and len(pieces[2]) == 5:
        _, _, result_start, result_end, _ = pieces[2]
    openings.sort(key=lambda opening: -len(opening[0]))
    return ConversationFormat(tuple(openings), system_end, answer_start, question_start, result_start, result_end)


def _to_messages(turns: Sequence[tuple[str, str]]) -> list[Message]:
    return [{"role": role, "content": text} for role, text in turns]


def _split(text: str) -> list[str]:
    """Return the pieces of a text between the marks."""
    pieces = [""]
    for character in text:
        if character in MARKS:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces
