"""The settings with which images and sounds become inputs cannot be read.

## What it checks
preprocessor_config.json and processor_config.json, where they are there, are JSON objects.

## Why it matters
`AutoProcessor` and `AutoImageProcessor` of transformers stop with an OSError or an AttributeError, and with them vLLM, SGLang and
every trainer that gives the model images, sounds or videos. The weights load.

## How to fix
Copy the file from the model this one was made from, or save the processor again (`AutoProcessor.save_pretrained`).

## When it can be wrong
A model of text that keeps such a file from another one loads without it: remove the file, or use `--ignore CFG047`.

## Seen in
No public report: files that were cut off, or edited by hand.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

OTHER_RULES = ("lfs-pointer", "html-page")
"""Kinds of defects that ST014 reports."""


@rule(
    "CFG047",
    "broken-processor",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(ckpt.processor_configs),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for config in ckpt.processor_configs:
        if not config.readable and config.defects and config.defects[0].kind not in OTHER_RULES:
            yield Problem(
                f"{config.defects[0].text}; AutoProcessor of transformers stops, and vLLM and SGLang through it",
                file=config.file,
                hint="copy it from the model this one was made from, or save the processor again",
            )
