"""The chat template reaches for what only an attack needs.

## What it checks
No chat template names Python's machinery (`__class__`, `__globals__`, by an attribute, a subscript, the filter `attr` or a format
string), none includes or imports another file, and none does what transformers' sandbox refuses as unsafe. The rule looks at the
whole template, so also at branches that ordinary conversations do not take.

## Why it matters
From `__class__` a template gets to every function of the process that renders it. The sandbox of transformers, which vLLM and
SGLang use, stops it with an error, and every chat that takes this branch fails. A program without that sandbox runs the attack:
llama-cpp-python did until 0.2.72.

## How to fix
Do not use this template, and ask where it comes from. Take the template of the model this one was made from.

## When it can be wrong
A template may ask for `__len__` by mistake; transformers refuses that too. Write `| length`.

## Seen in
CVE-2024-34359 (llama-cpp-python), CVE-2025-61620 (vLLM: hostile chat templates)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import join_truncated


@rule(
    "TOK015",
    "template-attack",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: bool(ckpt.tokenizer.templates),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for template in ckpt.tokenizer.templates.values():
        if template.escapes:
            names = join_truncated([clip(name, 40) for name in template.escapes])
            yield Problem(
                f"the chat template reaches for {names}, as attacks on the program that renders it do; transformers refuses it",
                file=template.file,
                key=template.key,
                hint="do not use this template; take the one of the model this one was made from",
            )
