"""The base of the rotary embeddings is one that no released model has, or the config has two of them.

## What it checks
In a config whose `model_type` transformers knows:

- the base of the language model's rotary embeddings is at least 100 (most released models have 10,000 to 100 million)
- the base of every part is at most 1e15
- where both `rope_theta` and `rope_parameters` are there, they have the same base

## Why it matters
transformers, vLLM and SGLang compute with any base, without a word. Of two, transformers 5 takes the one in `rope_parameters`, and
whatever is built on transformers 4 takes `rope_theta`: answers get worse, the more so the longer the text.

## How to fix
Copy the base from the config of the model this one was trained or converted from.

## When it can be wrong
Research on other position encodings may use a small base on purpose: use `--ignore CFG028`. A base that some other model has
passes, however wrong it is for this one.

## Seen in
Open-Athena/MarinFold#184 and THUDM/slime#1720 (two readers of one config take two bases)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.rope_settings import iter_rope
from ckptcheck.checkpoint.setting_text import Fault, is_number
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

LEAST_BASE, LARGEST_BASE = 100.0, 1e15
"""Released language models have 10,000 to 1e11; only a slip of the pen lies beyond these by four digits."""


@rule(
    "CFG028",
    "implausible-rope-base",
    severity="warning",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    resolved = ckpt.config.resolved
    for part in resolved.parts if resolved is not None else ():
        for path, fault in _iter_odd_bases(part, is_text=resolved is not None and part is resolved.text):
            yield Problem(fault, file=ckpt.config.file, key=path, hint="copy it from the model's own config")


def _iter_odd_bases(part: ResolvedPart, *, is_text: bool) -> Iterator[Fault]:
    """Yield bases that no released model has, and the older of two bases. is_text: whether the part is the language model."""
    bases = {f"{path}.rope_theta": parameters.get("rope_theta") for path, parameters in iter_rope(part)}
    newer = {path: base for path, base in bases.items() if path.startswith(f"{part.path}rope_parameters")}
    older, place = part.settings.get("rope_theta"), f"{part.path}rope_theta"
    if part.config_class.rope:
        bases[place] = older
    for path, base in bases.items():
        if is_number(base) and is_text and base < LEAST_BASE:
            yield path, f"{path} is {base}, and no released language model has a base below {LEAST_BASE:.0f}"
        elif is_number(base) and base > LARGEST_BASE:
            yield path, f"{path} is {base}, and no released model has a base above {LARGEST_BASE:.0e}"
    given = {path: base for path, base in newer.items() if is_number(base)}
    if part.config_class.rope and is_number(older) and given and older not in given.values():
        path, base = next(iter(given.items()))
        yield (
            place,
            f"{place} is {older:,}, and {path} {base:,}: transformers 5 takes the second, and what is built on transformers 4 the "
            "first",
        )
