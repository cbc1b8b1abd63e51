"""The base of the rotary embeddings or the epsilon of the norms is one that no released model has.

## What it checks
In the language model's part of a config whose `model_type` transformers knows:

- the base of the rotary embeddings is at least 100 (most released models have 10,000 to 100 million)
- the epsilon of the norms is between 1e-13 and 1e-2 (released models have 1e-12 to 1e-3)

## Why it matters
transformers, vLLM and SGLang compute with any such number, without a word: a norm with an epsilon of 1 flattens everything.
CFG024 checks the sliding window.

## How to fix
Copy the setting from the config of the model this one was trained or converted from.

## When it can be wrong
Research on other position encodings may use a small base on purpose: use `--ignore CFG028`. Numbers that some other model has
pass, however wrong they are for this one.

## Seen in
No public report: configs edited by hand.
"""

from collections.abc import Iterator
from typing import TypeGuard

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_refusals import NORM_EPSILON, iter_rope
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

LEAST_BASE = 100.0
EPSILONS = (1e-13, 1e-2)


@rule(
    "CFG028",
    "implausible-setting",
    severity="warning",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    resolved = ckpt.config.resolved
    if resolved is None:
        return
    part = resolved.text
    odd: dict[str, str] = {}
    bases = {f"{path}.rope_theta": parameters.get("rope_theta") for path, parameters in iter_rope(part)}
    if part.config_class.rope:
        bases[f"{part.path}rope_theta"] = part.settings.get("rope_theta")
    for path, base in bases.items():
        if _is_number(base) and base < LEAST_BASE:
            odd[path] = f"{path} is {base}, and no released language model has a base below {LEAST_BASE:.0f}"
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        is_epsilon = NORM_EPSILON.fullmatch(key) and key in part.config_class.types
        if is_epsilon and _is_number(value) and not EPSILONS[0] <= value <= EPSILONS[1]:
            odd[path] = f"{path} is {value}, and no released model has an epsilon outside of 1e-12 to 1e-3"
    for path, fault in odd.items():
        yield Problem(fault, file=ckpt.config.file, key=path, hint="copy it from the model's own config")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
