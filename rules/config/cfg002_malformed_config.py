"""The config cannot be read, or gives a number as something else.

## What it checks
`config.json` (or `adapter_config.json`) is a JSON object, and its sizes and counts (layers, heads, hidden and
intermediate size, vocabulary, experts) are whole numbers that are not negative, lists of them, or null. The nested
config of the language model is looked at too.

## Why it matters
transformers, vLLM and SGLang stop on a file that is no JSON object. A number in quotes passes the parser and fails
later, or is compared as text.

## How to fix
Write the file anew with the library that made it, or correct the value.

## When it can be wrong
A model with code of its own (`auto_map`) may write -1, a fraction or a word where its code computes the number;
`--ignore CFG002` if that code is all that reads it. Only the settings that are named above are looked at, and only
their type and sign: a wrong number is for CFG003 and CFG012 to CFG015, which hold it against the tensors.

## Seen in
No public report: configs edited by hand.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS, HEADS, HIDDEN, INTERMEDIATE, LAYERS

MOST = 2**40
FILES = {"config.json", "adapter_config.json"}
NUMBERS = (*LAYERS, *HIDDEN, *HEADS, *INTERMEDIATE, *EXPERTS, "vocab_size", "num_key_value_heads", "head_dim")


@rule(
    "CFG002",
    "malformed-config",
    severity="error",
    when=lambda ckpt: not ckpt.single and (ckpt.config is not None or ckpt.adapter is not None),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("not-json", "not-object", "byte-order-mark", files=FILES):
        yield replace(problem, message=f"the config cannot be read: {problem.message}", hint="write the file anew")
    if ckpt.config is None:
        return
    listed = ckpt.config.value.get("architectures")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
        yield Problem(
            f"architectures is {listed!r:.60}, but it has to be a list of names",
            file=ckpt.config.file,
            key="architectures",
            hint='write ["…ForCausalLM"]',
        )
    for name in dict.fromkeys(NUMBERS):
        value = ckpt.config.get(name)
        if value is not None and not _sound(value):
            yield Problem(
                f"{name} is {value!r:.60}, but it has to be a whole number that is not negative",
                file=ckpt.config.file,
                key=ckpt.config.key(name),
                hint="correct the value",
            )


def _sound(value: Any) -> bool:
    """Lists and objects give a number per layer, or the settings of a part."""
    return isinstance(value, (list, dict)) or (type(value) is int and 0 <= value < MOST)
