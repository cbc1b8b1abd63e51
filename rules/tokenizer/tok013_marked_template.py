"""The chat template begins with a byte order mark.

## What it checks
The file of a chat template (or its text in tokenizer_config.json) does not begin with U+FEFF, the mark that some editors write.

## Why it matters
transformers takes the mark for text and heads every prompt with it: one to three tokens that nobody sees, and that the model
was not trained on. vLLM and SGLang do the same.

## How to fix
Save the file as UTF-8 without a mark; most editors offer it beside the encoding.

## When it can be wrong
A model that was trained with this very template has learned the mark; it is then as it should be, and only whoever writes
prompts by hand will miss it. That is why this is a warning.

## Seen in
Made by hand and tried with transformers 5.23; a JSON file with a mark is refused, a template is not.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

MARK = "\ufeff"


@rule(
    "TOK013",
    "marked-template",
    severity="warning",
    when=lambda ckpt: ckpt.tokenizer is not None and bool(ckpt.tokenizer.templates),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.tokenizer is not None
    for template in ckpt.tokenizer.templates.values():
        if template.text.startswith(MARK) and template.undecodable is None:
            yield Problem(
                "the chat template begins with a byte order mark (U+FEFF), and so does every prompt",
                file=template.file,
                key=template.key,
                hint="save the file as UTF-8 without a mark",
            )
