"""A setting occurs twice in config.json.

## What it checks
No object in `config.json` or `adapter_config.json` has the same key twice.

## Why it matters
transformers, vLLM and SGLang read the file with Python, which keeps the last one. An edit of the first has no effect, and a
reader in another language may use the first. Merging two configs by hand leaves such duplicates.

## How to fix
Remove the wrong one.

## When it can be wrong
If both have the same value, nothing is wrong yet; the rule does not compare them. A setting at the top level and one in a
nested config are two different settings and pass.

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
            message="this setting occurs twice, and Python keeps the last",
            hint="remove the wrong one",
        )
