"""Finds out whether a chat template renders earlier turns unchanged when a conversation grows.

Trainers that join the turns of a conversation to one sequence, masks computed from the lengths of prefixes, and prefix caches rely
on it: the text up to an answer has to be a prefix of the text of the longer conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

THOUGHT, CALL, RESULT = "Walruses think epsilon", "Lemurs zeta", "Ibises find eta"
"""Further texts of conversations, beside the ones in chat_template.py; no template contains them."""
PREFIX = "growing, "
"""Beginning of the names of these conversations."""
Thinking = Literal["without thinking", "thinking in the text", "thinking in its field"]
FollowUp = Literal["question", "tool result"]
THINKING: tuple[Thinking, ...] = ("without thinking", "thinking in the text", "thinking in its field")


@dataclass(frozen=True)
class RewrittenTurn:
    """An answer that a template renders differently once the conversation goes on."""

    follow_up: FollowUp
    thinking: Thinking
    drops_thinking: bool
    """Whether the text contains the thinking while the answer is the last turn, but not afterwards."""
    before: str
    """The text from the first difference on, while the answer is the last turn; at most `SHOWN` characters."""
    after: str
    """The same when the conversation goes on."""


SHOWN = 24


def list_growing_conversations(
    question: str, answer: str, again: str, tool: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield pairs of conversations: up to an answer, and beyond it, by a further question or by the result of a tool.

    Arguments: the texts of the turns, and the description of the tool that is called.
    """
    name = tool["function"]["name"]
    for thinking in THINKING:
        assistant: dict[str, Any] = {"role": "assistant", "content": answer}
        if thinking == "thinking in the text":
            assistant["content"] = f"<think>\n{THOUGHT}\n</think>\n\n{answer}"
        elif thinking == "thinking in its field":
            assistant["reasoning_content"] = THOUGHT
        function = {"name": name, "arguments": {"word": CALL}}
        # an id of nine letters and digits, which Mistral's templates require
        calling = {**assistant, "tool_calls": [{"type": "function", "id": "call12345", "function": function}]}
        result = {"role": "tool", "name": name, "tool_call_id": "call12345", "content": RESULT}
        user, further = {"role": "user", "content": question}, {"role": "user", "content": again}
        for follow_up, turn, next_turn, tools in (
            ("question", assistant, further, None), ("tool result", calling, result, [tool]),
        ):  # fmt: skip
            inputs = {"tools": tools, "documents": None}
            done = {"messages": [user, turn], "add_generation_prompt": False, **inputs}
            grown = {"messages": [user, turn, next_turn], "add_generation_prompt": True, **inputs}
            yield {"name": f"{PREFIX}{follow_up}, {thinking}, done", "input": done}
            yield {"name": f"{PREFIX}{follow_up}, {thinking}, grown", "input": grown}


def find_rewritten_turns(texts: Mapping[str, str], answer: str) -> tuple[RewrittenTurn, ...]:
    """Return the pairs whose shorter text, up to the end of the answer, is no prefix of the longer text.

    texts: name of a conversation → its text, for conversations that the template accepts. It leaves out pairs that show neither
    the answer nor the call, and thinking in a field that the template does not know.
    """
    found: list[RewrittenTurn] = []
    follow_ups: tuple[FollowUp, ...] = ("question", "tool result")
    for follow_up in follow_ups:
        anchor = answer if follow_up == "question" else CALL
        for thinking in THINKING:
            name = f"{PREFIX}{follow_up}, {thinking}, "
            done, grown = texts.get(name + "done"), texts.get(name + "grown")
            if done is None or grown is None or anchor not in done or anchor not in grown:
                continue
            if thinking == "thinking in its field" and THOUGHT not in done and THOUGHT not in grown:
                continue
            done = done[: done.rindex(anchor) + len(anchor)]
            drops = thinking != "without thinking" and THOUGHT not in grown
            if grown.startswith(done) and not drops:
                continue
            place = next(
                (i for i, (a, b) in enumerate(zip(done, grown, strict=False)) if a != b), min(len(done), len(grown))
            )
            found.append(
                RewrittenTurn(follow_up, thinking, drops, done[place : place + SHOWN], grown[place : place + SHOWN])
            )
    return tuple(found)
