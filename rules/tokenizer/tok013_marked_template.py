"""The chat template begins with a byte order mark.

## What it checks
The file of a chat template (or its text in tokenizer_config.json) does not begin with U+FEFF, the mark that some editors write.

## Why it matters
transformers takes the mark for text and starts every prompt with it: one to three tokens that nobody sees, and that the model was
not trained on. vLLM and SGLang do the same.

## How to fix
Save the file as UTF-8 without a mark; most editors offer it beside the encoding.

## When it can be wrong
It is a warning because a model that was trained with this template has learned the mark. Then the template is right, and only
prompts written by hand lack the mark.

## Seen in
Made by hand and tried with transformers 5.23; a JSON file with a mark is refused, a template is not.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

MARK = "\ufeff"


@rule(
    "TOK013",
    "marked-template",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: bool(ckpt.tokenizer.templates),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for template in ckpt.tokenizer.templates.values():
        if template.text.startswith(MARK) and template.undecodable is None:
            yield Problem(
                "the chat template begins with a byte order mark (U+FEFF), and so does every prompt",
                file=template.file,
                key=template.key,
                hint="save the file as UTF-8 without a mark",
            )
