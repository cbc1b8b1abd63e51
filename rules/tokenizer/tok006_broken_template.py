"""The chat template does not parse, or fails on every ordinary conversation.

## What it checks
chat_template.jinja is a UTF-8 text. Each chat template parses as transformers' jinja does it, and the default one renders at
least one of twelve small conversations (with a system prompt, an answer, tools; contents as texts and as lists of parts). It is
rendered in transformers' sandbox, in a process of its own with hard limits of time and memory; one that strikes them is
reported.

## Why it matters
`apply_chat_template` of transformers stops, and vLLM and SGLang answer every chat with an error. A template that takes
endless time or memory does so inside the server.

## How to fix
Take the template of the model this one was made from; mind that `{{` survives the tool that writes it.

## When it can be wrong
A template that needs a variable of its own to render anything, and says so with an error of jinja. One that refuses in
words of its own (`raise_exception`) is not reported, nor is a named one such as `rag` that parses. An older or newer jinja
than the one that is installed here may parse otherwise.

## Seen in
chujiezheng/chat_templates#26, oobabooga/textgen#4911, nomic-ai/gpt4all#3309
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "TOK006",
    "broken-template",
    severity="error",
    when=lambda ckpt: ckpt.tokenizer is not None and bool(ckpt.tokenizer.templates),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.tokenizer is not None
    if (at := ckpt.tokenizer.undecodable) is not None:
        yield Problem(
            f"the chat template is no UTF-8 text, from byte {at:,} on: transformers does not load the tokenizer",
            file="chat_template.jinja",
            hint="take the template of the model this one was made from",
        )
    for template in ckpt.tokenizer.templates.values():
        said = None
        if template.unbounded is not None:
            said = f"the chat template strikes the limits that it is rendered in: {template.unbounded}"
        elif template.syntax_error is not None:
            reason, line = template.syntax_error
            said = f"the chat template does not parse: {reason}" + (f" (line {line})" if line else "")
        elif template is ckpt.tokenizer.template and template.failure is not None:
            said = f"the chat template fails on every conversation: {template.failure}"
        if said is not None:
            hint = "take the template of the model this one was made from"
            yield Problem(said, file=template.file, key=template.key, hint=hint)
