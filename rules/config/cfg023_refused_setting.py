"""transformers refuses a value of the config.

## What it checks
Where transformers knows the `model_type`: every value of `config.json` and its nested configs has the type that the config
class declares, and lies within the class's bounds. Activation functions, dtypes and the model types of nested configs exist; the
dtype is one that torch creates parameters in.

## Why it matters
transformers 5 checks the types when it builds the config, and stops at the first wrong one: a number in quotes, a list, null
where the class has no use for it, true or false for a number. An unknown activation stops it when it builds the model. vLLM
and SGLang read the config through transformers.

## How to fix
Correct the value, or copy the config of the model this one was trained or converted from.

## When it can be wrong
transformers 4 did not check types, so a config that is older than transformers 5 may have worked with it. A config with its
own class (`auto_map`) is not checked. CFG002 reports sizes and counts that are no integers. Which combinations of values a class
refuses, only `--dry-load transformers` shows.

## Seen in
huggingface/transformers#44877 (a whole number for a multiplier), sgl-project/sglang#26674 (0 for 0.0),
huggingface/transformers#33155 (a dtype of 8 bits)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_refusals import iter_unknown_names, iter_wrong_types
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule(
    "CFG023",
    "refused-setting",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    found: dict[str, str] = {}
    for part in config.resolved.parts if config.resolved is not None else ():
        for path, fault in (*iter_wrong_types(part), *iter_unknown_names(part)):
            found.setdefault(path, fault)
    for path, fault in found.items():
        if path not in config.malformed_counts:
            yield Problem(
                f"{fault}; transformers refuses to load the checkpoint",
                file=config.file,
                key=path,
                hint="correct the value, or copy it from the model's own config",
            )
