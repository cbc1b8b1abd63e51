"""The chat template of a checkpoint: what it says of small conversations, how it ends a turn.

Which one counts, `template_files` says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.confined import Answer, run_confined

SECONDS, MEMORY = 4, 1 << 29
"""What the rendering of all conversations may take; real templates take a hundredth of it."""
MOST_CHARACTERS = 1 << 20
"""Longest template that is looked at; the longest real ones have some 20,000."""
MARKER = re.compile(r"<[|｜][^<>\s|｜]{1,60}[|｜]>")
"""How a control token looks when it is one: <|im_end|>, <｜User｜>."""

QUESTION, ANSWER, AGAIN, ORDER = "Zebras ask alpha", "Quokkas answer beta", "Zebras ask gamma", "Otters order delta"
"""What is said in the conversations: nothing that stands in a template."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def _conversations() -> Iterator[dict[str, Any]]:
    """Yield the conversations, each with plain contents and with lists of parts, which multimodal templates want."""
    user, answer, again = ("user", QUESTION), ("assistant", ANSWER), ("user", AGAIN)
    talks = {
        "asked": ([user], True, None),
        "asked, no prompt": ([user], False, None),
        "answered": ([user, answer], False, None),
        "asked again": ([user, answer, again], True, None),
        "ordered": ([("system", ORDER), user], True, None),
        "with tools": ([user], True, [TOOL]),
    }
    for parts in (False, True):
        for name, (messages, prompt, tools) in talks.items():
            said = [
                {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
                for role, text in messages
            ]
            given = {"messages": said, "add_generation_prompt": prompt, "tools": tools, "documents": None}
            yield {"name": f"{name} in parts" if parts else name, "input": given}


@dataclass(frozen=True)
class ChatTemplate:
    """One template. variables: the special tokens by name (``bos_token``), as a template gets them.

    undecodable: where the file's first byte is that is no UTF-8; None where it is a text.
    """

    file: str
    key: str | None
    text: str = field(repr=False)
    variables: dict[str, str] = field(default_factory=dict)
    undecodable: int | None = None

    @cached_property
    def _answer(self) -> Answer:
        """What the child process said. Raises Skip where it could not be run."""
        return run_confined(
            "templates",
            seconds=SECONDS,
            memory=MEMORY,
            templates={"": self.text},
            conversations=list(_conversations()),
            variables=self.variables,
        )

    def _lines(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self._answer.lines if key in line]

    @cached_property
    def unbounded(self) -> str | None:
        """How the template hit a limit of time, memory or length, None where it did not."""
        if len(self.text) > MOST_CHARACTERS:
            return f"it has {len(self.text):,} characters"
        if self._answer.bound is not None:
            return self._answer.bound
        struck = {line["bound"] for line in self._lines("bound")}
        if "memory" in struck:
            return f"it takes more than {MEMORY >> 20} MiB of memory"
        return "it writes without end" if struck else None

    @cached_property
    def syntax_error(self) -> tuple[str, int | None] | None:
        """Why jinja cannot parse it, and in which line."""
        broken = self._lines("broken") if len(self.text) <= MOST_CHARACTERS else []
        return (str(broken[0]["broken"]), broken[0].get("line")) if broken else None

    @cached_property
    def rendered(self) -> dict[str, str]:
        """Conversation → what the template makes of it, as far as it takes it, plain or in parts."""
        if len(self.text) > MOST_CHARACTERS:
            return {}
        texts = {str(line["conversation"]): str(line["text"]) for line in self._lines("text")}
        named = [talk["name"] for talk in _conversations()]
        found = {}
        for name in named[: len(named) // 2]:
            both = [texts[form] for form in (name, f"{name} in parts") if form in texts]
            if both:  # some templates write a list's repr, others drop a plain text: the one that says what was said
                found[name] = next((text for text in both if QUESTION in text and "'text'" not in text), both[0])
        return found

    @cached_property
    def failure(self) -> str | None:
        """Why it fails on every conversation; None if it takes one, or refuses some in words of its own."""
        if self.rendered or self.unbounded or self.syntax_error or self._lines("refused"):
            return None
        failed = self._lines("failed")
        return str(failed[0]["failed"]) if failed else None

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing that could write anything."""
        return not self.text.strip("\ufeff \t\r\n")

    @cached_property
    def loses_questions(self) -> bool:
        """Whether it writes turns of the user and nothing of what is said in them.

        One that writes the same for one question and for two is made for other roles (``query``, ``document``).
        """
        one, two = (self.rendered.get(name) for name in ("asked", "asked again"))
        told = any(text.lower() in said.lower() for text in (QUESTION, AGAIN) for said in self.rendered.values())
        return one is not None and two is not None and one != two and not told

    @cached_property
    def literals(self) -> str:
        """The text and the string constants of the parsed template, with NULs between."""
        if len(self.text) > MOST_CHARACTERS:
            return ""
        return "".join(str(line["literals"]) for line in self._lines("literals"))

    @cached_property
    def generation_prompt(self) -> str:
        """What `add_generation_prompt` adds."""
        with_it, without = (self.rendered.get(name, "") for name in ("asked", "asked, no prompt"))
        return with_it.removeprefix(without) if without and with_it.startswith(without) else ""

    @cached_property
    def ordinary(self) -> str:
        """All it writes in conversations without tools."""
        return "\0".join(text for name, text in self.rendered.items() if name != "with tools")


def markers(text: str, tokens: Collection[str]) -> list[str]:
    """Return the control tokens in a text, in their order: the given ones, and what only looks like one (MARKER).

    >>> markers("<|im_end|> <s>[INST]", ["<s>"])
    ['<|im_end|>', '<s>']
    """
    places = {match.start(): match[0] for match in MARKER.finditer(text)}
    for token in sorted(tokens, key=len):  # at one place the longest counts
        at = text.find(token)
        while at >= 0:
            places[at] = token
            at = text.find(token, at + len(token))
    return [places[at] for at in sorted(places)]


def first_marker(text: str, tokens: Collection[str]) -> str | None:
    """Return the control token a text begins with, white space apart.

    >>> first_marker(" </s><s>", ["<s>", "</s>"]), first_marker("USER: </s>", ["</s>"])
    ('</s>', None)
    """
    found = markers(text, tokens)
    return found[0] if found and text.lstrip().startswith(found[0]) else None
