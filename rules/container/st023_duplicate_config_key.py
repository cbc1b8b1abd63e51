"""A setting stands twice in config.json.

## What it checks
No object in `config.json` or `adapter_config.json` has the same key twice.

## Why it matters
transformers, vLLM and SGLang read the file with Python, where the last one counts. Whoever edited the first sees no
effect, and a reader in another language may take that one. It is what is left when two configs are merged by hand.

## How to fix
Remove the one that is not meant.

## When it can be wrong
Where both give the same value nothing is wrong yet; the two are not compared. A setting that stands once at the top
and once in a nested config is not meant here: those are two settings.

## Seen in
No public report: configs merged by hand.
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST023",
    "duplicate-config-key",
    severity="warning",
    when=lambda ckpt: ckpt.config is not None or ckpt.adapter is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("duplicate-key", files=("config.json", "adapter_config.json")):
        yield replace(
            problem,
            message="this setting stands twice, and Python takes the last",
            hint="remove the one that is not meant",
        )
