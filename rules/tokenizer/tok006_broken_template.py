"""The chat template does not parse, fails on every ordinary conversation, or loses what is said.

## What it checks
Each chat template (chat_template.jinja, those of additional_chat_templates, or `chat_template` of tokenizer_config.json) is a
UTF-8 text; of several, one is called `default`. Each parses as transformers' jinja does it. The default one, and the one for
tools (`tool_use`), render at least one of twelve small conversations (with a system prompt, an answer, tools; contents as texts
and as lists of parts). The default one is not empty, and in a model for text it writes what the user says. It is rendered in
transformers' sandbox, in a process of its own with hard limits of time and memory; one that strikes them is reported.

## Why it matters
`apply_chat_template` of transformers stops, and vLLM and SGLang answer every chat with an error; a file that is no text, or an
entry without its template, keeps the tokenizer from loading. A template that loses what is said fails nowhere: the model
answers prompts that it has not seen. One that takes endless time or memory does so inside the server.

## How to fix
Take the template of the model this one was made from; mind that `{{` survives the tool that writes it.

## When it can be wrong
A template that needs a variable of its own to render anything, and says so with an error of jinja. One that refuses in
words of its own (`raise_exception`) is not reported, nor is a named one such as `rag` that parses. One that is made for other
roles (`query`, `document`) writes the same for one question and for two, and is left. An older or newer jinja than the one that
is installed here may parse otherwise.

## Seen in
chujiezheng/chat_templates#26, oobabooga/textgen#4911, nomic-ai/gpt4all#3309
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.template_files import is_for_text

if TYPE_CHECKING:
    from ckptcheck.checkpoint.chat_template import ChatTemplate

HINT = "take the template of the model this one was made from"
BY_ITSELF = ("default", "tool_use")
"""The templates that transformers takes where none is asked for."""


@rule(
    "TOK006",
    "broken-template",
    severity="error",
    when=lambda ckpt: (
        ckpt.tokenizer is not None and bool(ckpt.tokenizer.templates or ckpt.tokenizer.template_files.faults)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    assert tokenizer is not None
    for_text = is_for_text(ckpt.source, tokenizer.tokenizer_config, ckpt.config)
    for fault in tokenizer.template_files.faults:
        yield Problem(fault.text, file=fault.file, key=fault.key, hint=HINT)
    for name, template in tokenizer.templates.items():
        if template.undecodable is not None:
            said = (
                f"the chat template is no UTF-8 text, from byte {template.undecodable:,} on: transformers does not load"
            )
            yield Problem(f"{said} the tokenizer", file=template.file, hint=HINT)
        elif (reason := _broken(template)) is not None:
            yield Problem(f"the chat template {reason}", file=template.file, key=template.key, hint=HINT)
        elif name in BY_ITSELF and template.failure is not None:
            said = f"the chat template fails on every conversation: {template.failure}"
            yield Problem(said, file=template.file, key=template.key, hint=HINT)
        elif name == "default" and template.is_empty:
            said = "the chat template is empty: every chat becomes a prompt without a token"
            yield Problem(said, file=template.file, key=template.key, hint=HINT)
        elif name == "default" and for_text and template.loses_questions:
            said = "the chat template writes turns of the user, and nothing of what is said in them"
            yield Problem(said, file=template.file, key=template.key, hint=HINT)


def _broken(template: ChatTemplate) -> str | None:
    if template.unbounded is not None:
        return f"strikes the limits that it is rendered in: {template.unbounded}"
    if template.syntax_error is not None:
        reason, line = template.syntax_error
        return f"does not parse: {reason}" + (f" (line {line})" if line else "")
    return None
