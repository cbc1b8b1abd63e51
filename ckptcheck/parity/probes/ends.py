"""Does every end token end a response? Does the engine make the same tokens of a prompt as the checkpoint's files?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.parity.probes.reading import Reads
from ckptcheck.rule import Skip


@dataclass(frozen=True)
class EndsSeen:
    """ends: id of an end token → who says that it is one. passed: those after which the engine went on. finish: id → its word."""

    ends: dict[int, str]
    passed: tuple[int, ...]
    finish: dict[int, str]


def probe(bench: Bench) -> Probe:
    """Force the model to say an end token, with more to come."""
    if not bench.ends:
        raise Skip("no file of the checkpoint says which token ends a response")
    engine = yield bench.setup.having(text=True)
    passed, finish = [], {}
    other = next(token for token in range(8, 8 + len(bench.ends) + 1) if token not in bench.ends)
    for token in bench.ends:
        made = engine.forced(bench.prompts[0], [other, token, other, other])
        finish[token] = made.finish
        if len(made.tokens) > 2:
            passed.append(token)
    return EndsSeen(dict(bench.ends), tuple(passed), finish)


@dataclass(frozen=True)
class PromptSeen:
    """due: tokens of a conversation by the checkpoint's own template and tokenizer. chat: by the engine's.

    text: those that the engine makes of the rendered conversation when it is sent as a text.
    """

    due: tuple[int, ...]
    chat: tuple[int, ...]
    text: tuple[int, ...]
    rendered: str


def prompt(bench: Bench) -> Probe:
    """Hand in a conversation, and the same as text."""
    if bench.chat is None:
        raise Skip("the checkpoint has no chat template")
    engine = yield bench.setup.having(text=True)
    if not hasattr(engine, "read"):
        raise Skip(f"{engine.info.name} is not asked for the tokens of a text here")
    rendered, due, messages = bench.chat
    text, chat = cast(Reads, engine).read(rendered, messages)
    return PromptSeen(due, chat, text, rendered)
