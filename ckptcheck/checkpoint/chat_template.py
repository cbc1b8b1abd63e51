"""Renders a chat template on small conversations, in a sandboxed child process, and finds how it ends the assistant's turn.

`template_files` decides which of a checkpoint's templates counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ckptcheck.checkpoint.sandbox import SandboxResult, run_sandboxed
from ckptcheck.checkpoint.token_search import TokenSearch

SECONDS, MEMORY = 4, 1 << 29
"""Limits for rendering all conversations: seconds of processor time, bytes of memory. Real templates need a hundredth."""
MOST_CHARACTERS = 1 << 20
"""Longest template that is rendered; the longest real ones have some 20,000 characters."""
MARKER = re.compile(r"<[|｜][^<>\s|｜]{1,60}[|｜]>")
"""The usual form of a control token: <|im_end|>, <｜User｜>."""

QUOTED = re.compile(r"'([^']{1,100})'")

QUESTION, ANSWER, AGAIN, ORDER = "Zebras ask alpha", "Quokkas answer beta", "Zebras ask gamma", "Otters order delta"
"""The texts of the test conversations; no template contains them."""
THOUGHT, CALL, RESULT = "Walruses think epsilon", "Lemurs zeta", "Ibises find eta"
"""Further texts of conversations, for those that grow; no template contains them."""
PREFIX = "growing, "
"""Beginning of the names of these conversations."""
Thinking = Literal["without thinking", "thinking in the text", "thinking in its field"]
FollowUp = Literal["question", "tool result"]
THINKING: tuple[Thinking, ...] = ("without thinking", "thinking in the text", "thinking in its field")
SHOWN = 24
"""Characters of a difference that a message shows."""
ROLES = ("user", "assistant", "system", "tool")
"""The roles of the test conversations. The child asks once more in each other role that the template knows."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def _conversations() -> Iterator[dict[str, Any]]:
    """Yield the test conversations, each with string contents and with lists of parts, which multimodal templates expect."""
    user, answer, again = ("user", QUESTION), ("assistant", ANSWER), ("user", AGAIN)
    conversations = {
        "asked": ([user], True, None),
        "asked, no prompt": ([user], False, None),
        "answered": ([user, answer], False, None),
        "asked again": ([user, answer, again], True, None),
        "ordered": ([("system", ORDER), user], True, None),
        "with tools": ([user], True, [TOOL]),
    }
    for parts in (False, True):
        for name, (messages, prompt, tools) in conversations.items():
            turns = [
                {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
                for role, text in messages
            ]
            inputs = {"messages": turns, "add_generation_prompt": prompt, "tools": tools, "documents": None}
            yield {"name": f"{name} in parts" if parts else name, "input": inputs}


def _growing_conversations() -> Iterator[dict[str, Any]]:
    """Yield pairs of conversations: up to an answer, and beyond it, by a further question or by the result of a tool.

    Trainers that join the turns of a conversation to one sequence, masks computed from the lengths of prefixes, and prefix caches
    rely on the text up to an answer being a prefix of the text of the longer conversation.
    """
    name = "look_up"
    for thinking in THINKING:
        assistant: dict[str, Any] = {"role": "assistant", "content": ANSWER}
        if thinking == "thinking in the text":
            assistant["content"] = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
        elif thinking == "thinking in its field":
            assistant["reasoning_content"] = THOUGHT
        function = {"name": name, "arguments": {"word": CALL}}
        # an id of nine letters and digits, which Mistral's templates require
        calling = {**assistant, "tool_calls": [{"type": "function", "id": "call12345", "function": function}]}
        result = {"role": "tool", "name": name, "tool_call_id": "call12345", "content": RESULT}
        user, further = {"role": "user", "content": QUESTION}, {"role": "user", "content": AGAIN}
        for follow_up, turn, next_turn, tools in (
            ("question", assistant, further, None), ("tool result", calling, result, [TOOL]),
        ):  # fmt: skip
            inputs = {"tools": tools, "documents": None}
            done = {"messages": [user, turn], "add_generation_prompt": False, **inputs}
            grown = {"messages": [user, turn, next_turn], "add_generation_prompt": True, **inputs}
            yield {"name": f"{PREFIX}{follow_up}, {thinking}, done", "input": done}
            yield {"name": f"{PREFIX}{follow_up}, {thinking}, grown", "input": grown}


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


@dataclass(frozen=True)
class ChatTemplate:
    """One chat template and what it renders."""

    file: str
    key: str | None
    """JSON path within the file; None for a .jinja file."""
    text: str = field(repr=False)
    variables: dict[str, str] = field(default_factory=dict)
    """Special tokens by name (``bos_token``), as transformers passes them to a template."""
    undecodable: int | None = None
    """Offset of the first byte of the file that is not UTF-8; None where all of it is."""

    @cached_property
    def _answer(self) -> SandboxResult:
        """The answer of the child process, which gets no text that is too long. Raises Skip if the process could not run."""
        if len(self.text) > MOST_CHARACTERS:
            return SandboxResult((), f"it has {len(self.text):,} characters")
        return run_sandboxed(
            "templates",
            seconds=SECONDS,
            memory=MEMORY,
            templates={"": self.text},
            conversations=[*_conversations(), *_growing_conversations()],
            variables=self.variables,
            roles=ROLES,
            question=QUESTION,
        )

    def _lines(self, key: str) -> list[dict[str, Any]]:
        """The lines of the answer with a key, without growing conversations, which many sound templates refuse."""
        return [line for line in self._answer.lines if key in line and not _is_growing(line)]

    @cached_property
    def exceeded_limit(self) -> str | None:
        """The limit of time, memory or length that the template exceeded; None if it exceeded none."""
        if self._answer.bound is not None:
            return self._answer.bound
        limits = {line["bound"] for line in self._lines("bound")}
        if "memory" in limits:
            return f"it takes more than {MEMORY >> 20} MiB of memory"
        return "it writes without end" if limits else None

    @cached_property
    def syntax_error(self) -> tuple[str, int | None] | None:
        """Why jinja cannot parse the template, and in which line; None where it can."""
        errors = self._lines("broken")
        return (str(errors[0]["broken"]), errors[0].get("line")) if errors else None

    @cached_property
    def rendered(self) -> dict[str, str]:
        """Conversation → the rendered text, for the conversations that the template accepts (plain or in parts)."""
        texts = {str(line["conversation"]): str(line["text"]) for line in self._lines("text")}
        names = [talk["name"] for talk in _conversations()]
        rendered = {}
        for name in names[: len(names) // 2]:
            candidates = [texts[form] for form in (name, f"{name} in parts") if form in texts]
            # Some templates write a list's repr, others drop a plain text: prefer the form that shows the question.
            if candidates:
                rendered[name] = next(
                    (text for text in candidates if QUESTION in text and "'text'" not in text), candidates[0]
                )
        return rendered

    @cached_property
    def rewritten_turns(self) -> tuple[RewrittenTurn, ...]:
        """The answers that the template renders differently once the conversation goes on."""
        lines = [line for line in self._answer.lines if "text" in line and _is_growing(line)]
        return _find_rewritten_turns({str(line["conversation"]): str(line["text"]) for line in lines})

    @cached_property
    def failure(self) -> str | None:
        """Why the template fails on every conversation; None if it renders one, or refuses some with its own message."""
        if self.rendered or self.exceeded_limit or self.syntax_error or self._lines("refused"):
            return None
        failures = self._lines("failed")
        return str(failures[0]["failed"]) if failures else None

    @property
    def is_empty(self) -> bool:
        """Whether the template holds nothing but white space."""
        return not self.text.strip("\ufeff \t\r\n")

    @cached_property
    def escapes(self) -> tuple[str, ...]:
        """The names by which the template reaches for Python's internals or for files, even if the sandbox stops it."""
        found = [str(name) for line in self._lines("escapes") for name in line["escapes"]]
        refusals = [str(line["failed"]) for line in self._lines("failed")]
        refused = [name for text in refusals if text.startswith("SecurityError") for name in QUOTED.findall(text)[:1]]
        return tuple(dict.fromkeys(found + refused))

    @cached_property
    def shows_questions(self) -> bool:
        """Whether the rendered text contains the user's text, whatever role asks."""
        outputs = [*self.rendered.values(), *(str(line["text"]) for line in self._lines("text"))]
        return any(text.lower() in output.lower() for text in (QUESTION, AGAIN) for output in outputs)

    @cached_property
    def is_constant(self) -> bool:
        """Whether the template writes the same text whatever the conversation is."""
        outputs = {text for name, text in self.rendered.items() if name != "asked, no prompt"}
        return len(self.rendered) > 2 and len(outputs) == 1 and not self.shows_questions

    @cached_property
    def loses_questions(self) -> bool:
        """Whether the template writes the user's turns without the user's text.

        A template that shows the text of another role (``query``, ``document``) is made for that role and loses nothing.
        """
        return {"asked", "asked again"} <= self.rendered.keys() and not self.shows_questions

    @cached_property
    def literals(self) -> str:
        """The literal text and the string constants of the parsed template, joined by NUL."""
        return "".join(str(line["literals"]) for line in self._lines("literals"))

    @cached_property
    def ordinary(self) -> str:
        """Everything the template writes in conversations without tools, joined by NUL."""
        return "\0".join(text for name, text in self.rendered.items() if name != "with tools")


def _is_growing(line: dict[str, Any]) -> bool:
    return str(line.get("conversation", "")).startswith(PREFIX)


def _find_rewritten_turns(texts: Mapping[str, str]) -> tuple[RewrittenTurn, ...]:
    """Return the pairs whose shorter text, up to the end of the answer, is no prefix of the longer text.

    texts: name of a conversation → its text, for conversations that the template accepts. It leaves out pairs that show neither
    the answer nor the call, and thinking in a field that the template does not know.
    """
    found: list[RewrittenTurn] = []
    follow_ups: tuple[FollowUp, ...] = ("question", "tool result")
    for follow_up in follow_ups:
        anchor = ANSWER if follow_up == "question" else CALL
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


def markers(text: str, tokens: TokenSearch) -> list[str]:
    """Return the control tokens in a text, in order: the given tokens, and whatever has the form of one (MARKER).

    If several begin at one place, the longest of the given tokens counts, as in `tokenizers`.

    >>> markers("<|im_end|> <s>[INST]", TokenSearch(["<s>"]))
    ['<|im_end|>', '<s>']
    """
    found, at = [], 0
    forms = {match.start(): match[0] for match in MARKER.finditer(text)}
    while at < len(text):
        token = tokens.token_at(text, at) or forms.get(at)
        at += len(token) if token else 1
        found += [token] if token else []
    return found


def leading_marker(text: str, tokens: TokenSearch) -> str | None:
    """Return the control token that a text begins with, ignoring white space; None where it begins with other text.

    >>> search = TokenSearch(["<s>", "</s>"])
    >>> leading_marker(" </s><s>", search), leading_marker("USER: </s>", search)
    ('</s>', None)
    """
    tokens_in_text = markers(text, tokens)
    return tokens_in_text[0] if tokens_in_text and text.lstrip().startswith(tokens_in_text[0]) else None


@dataclass(frozen=True)
class Turns:
    """How one template ends the assistant's turn.

    The text between an answer and the next question holds the end of one turn and the beginning of the next. The beginning also
    precedes the first question, and at the end of a conversation no turn begins, which allows to separate the two.
    """

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
        """The control tokens of `_between` that end the answer. Tokens that also precede the first question begin a turn."""
        between = markers(self._between, self.special)
        before = markers(self.template.rendered.get("asked, no prompt", "").partition(QUESTION)[0], self.special)
        while between and before and between[-1] == before[-1]:
            between.pop()
            before.pop()
        return between

    @cached_property
    def _header(self) -> str | None:
        """The first token of the next turn, if no other token ends an answer and a file lists it as a stop (GLM)."""
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
