"""generation_config.json is not a JSON object, so its settings are lost.

## What it checks
generation_config.json, where there is one, is a JSON object.

## Why it matters
It stops no consumer: transformers and vLLM take the ends from config.json without a warning, and SGLang goes on without the
file. The ends and the sampling settings of its author are lost.

## How to fix
Write the file again, or copy it from the model this one was made from.

## When it can be wrong
Never seen: no consumer reads such a file.

## Seen in
Tried with transformers 5.23 (`adjust_generation_fn` catches the error), vLLM and SGLang: all three start.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint


@rule(
    "TOK022",
    "malformed-generation-config",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: "generation_config.json" in ckpt.files,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    defect = next(iter(ckpt.tokenizer.defects.get("generation_config.json", ())), None)
    # ST014 reports a pointer or a page in its place.
    if defect is None or defect.kind in ("lfs-pointer", "html-page"):
        return
    text = defect.text
    if defect.kind == "not-json":
        text += "; transformers, vLLM and SGLang go on without it and lose its ends and sampling settings"
    yield Problem(
        text,
        file="generation_config.json",
        key=defect.key,
        hint="write it again, or copy it from the model this one was made from",
    )
