"""The chat template does not parse, fails on every conversation, or drops what the user says.

## What it checks
The templates are chat_template.jinja, the files in additional_chat_templates, and `chat_template` of tokenizer_config.json.
- Each is UTF-8 text, and parses with jinja as transformers uses it. If there are several, one is called `default`.
- The default one, and the one for tools (`tool_use`), render at least one of twelve small conversations (with a system prompt,
  an answer, tools; contents as texts and as lists of parts).
- The default one is not empty; in a text model its output depends on the conversation and contains the user's text.

It renders them in transformers' sandbox, in a separate process with hard limits of time and memory, and reports a template that
exceeds them.

## Why it matters
- `apply_chat_template` of transformers raises an error, and vLLM and SGLang answer every chat with one.
- A file that is not text, or an entry without its template, keeps the tokenizer from loading.
- A template that drops the user's text raises no error: the model answers prompts that it never received.
- One that takes endless time or memory does so inside the server.

## How to fix
Take the template of the model this one was made from. Check that `{{` survives the tool that writes it.

## When it can be wrong
- A template may need a variable of its own to render anything, and fail with an error of jinja. One that refuses in its own
  words (`raise_exception`) is not reported, nor is a named one such as `rag` that parses.
- The rule leaves out a template for other roles (`query`, `document`), which compares the role with these names.
- An older or newer jinja than the installed one may parse differently.

## Seen in
chujiezheng/chat_templates#26, oobabooga/textgen#4911, nomic-ai/gpt4all#3309
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.template_files import HINT, is_text_only
from ckptcheck.checkpoint.views import TokenizedCheckpoint

if TYPE_CHECKING:
    from ckptcheck.checkpoint.chat_template import ChatTemplate

RENDERED_TEMPLATES = ("default", "tool_use")
"""The templates that transformers uses if the caller names none."""


@rule(
    "TOK006",
    "broken-template",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: bool(ckpt.tokenizer.templates or ckpt.tokenizer.template_files.faults),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    tokenizer = ckpt.tokenizer
    for_text = is_text_only(ckpt.source, tokenizer.tokenizer_config, ckpt.config)
    yield from tokenizer.template_files.faults
    for name, template in tokenizer.templates.items():
        if template.undecodable is not None:
            text = (
                f"the chat template is not UTF-8 text from byte {template.undecodable:,} on: transformers does not load"
            )
            yield Problem(f"{text} the tokenizer", file=template.file, hint=HINT)
        elif (reason := _fault_of(template)) is not None:
            yield Problem(f"the chat template {reason}", file=template.file, key=template.key, hint=HINT)
        elif name in RENDERED_TEMPLATES and template.failure is not None and not template.escapes:
            text = f"the chat template fails on every conversation: {template.failure}"
            yield Problem(text, file=template.file, key=template.key, hint=HINT)
        elif name == "default" and template.is_empty:
            text = "the chat template is empty: every chat becomes an empty prompt"
            yield Problem(text, file=template.file, key=template.key, hint=HINT)
        elif name == "default" and for_text and template.is_constant:
            text = (
                "the chat template writes the same text for every conversation: the model never sees what the user says"
            )
            yield Problem(text, file=template.file, key=template.key, hint=HINT)
        elif name == "default" and for_text and template.loses_questions:
            text = "the chat template writes the user's turns without what the user says"
            yield Problem(text, file=template.file, key=template.key, hint=HINT)


def _fault_of(template: ChatTemplate) -> str | None:
    if template.exceeded_limit is not None:
        return f"exceeds the limits of the sandbox that renders it: {template.exceeded_limit}"
    if template.syntax_error is not None:
        reason, line = template.syntax_error
        return f"does not parse: {reason}" + (f" (line {line})" if line else "")
    return None
