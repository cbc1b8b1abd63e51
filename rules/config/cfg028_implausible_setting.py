"""A rotary base, an epsilon, a dropout or a number of heads is one that no released model has.

## What it checks
In the language model's part of a config whose `model_type` transformers knows:

- the base of the rotary embeddings is at least 100 (most released models have 10,000 to 100 million)
- the epsilon of the norms is between 1e-13 and 1e-2 (released models have 1e-12 to 1e-3)

In every part of such a config, encoders of images and sound included:

- the base of the rotary embeddings is at most 1e15, and the same in `rope_theta` and `rope_parameters`, where both are there
- rates of dropout are from 0 to 1
- no number is NaN, and none is infinite that the class has finite, those of rotary embeddings included
- there are no more attention heads than the hidden size
- sizes and counts are below two billion
- a patch of an image has from 1 to 4,096 pixels a side
- the heads divide the hidden size where the class has no width of heads, does not project from rounded heads (GLM-4.5V), and does
  not take both numbers by itself (Qwen3-Omni's thinker: 28 heads, 2,048)

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

import re
from collections.abc import Iterator
from math import inf, isfinite, isnan, nan
from typing import TypeGuard

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_refusals import NORM_EPSILON
from ckptcheck.checkpoint.model_refusals import iter_refused_by_model
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.rope_refusals import NUMBERS, iter_rope, iter_wrong_rope
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.checkpoint.weights_table import WeightsTable

LEAST_BASE, LARGEST_BASE = 100.0, 1e15
EPSILONS = (1e-13, 1e-2)
DROPOUT = re.compile(r"dropout|_drop(_rate)?$|_pdrop$|drop_path_rate")
HEADS = re.compile(r"((?:encoder|decoder)_)?(num_)?(attention_)?heads")
WIDTH_OF_HEADS = re.compile(
    r"head_dim|head_size|d_kv|kv_channels|d_head|dim_head|_factor|expand|lora_rank|attention_hidden"
)
WIDTHS = ("hidden_size", "d_model", "embed_dim", "n_embd")
LARGEST_PATCH = 4096
HUGE = 2**31
UNBOUNDED = re.compile(r"rope|theta|position|token|window|length|len$|seed|max_|limit|chunk|_id")
"""Numbers that stand for "no limit" where they are large."""
READ_AS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""How transformers writes the numbers that JSON does not have, in an object with the key ``__float__``."""
PATCHES = ("patch_size", "temporal_patch_size", "spatial_merge_size")


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
    table = WeightsTable.of(ckpt.config)
    odd: dict[str, str] = {}
    bases = {f"{path}.rope_theta": parameters.get("rope_theta") for path, parameters in iter_rope(part)}
    if part.config_class.rope:
        bases[f"{part.path}rope_theta"] = part.settings.get("rope_theta")
    for path, base in bases.items():
        if _is_number(base) and base < LEAST_BASE:
            odd[path] = f"{path} is {base}, and no released language model has a base below {LEAST_BASE:.0f}"
    for each in resolved.parts:
        for path, parameters in iter_rope(each):
            base = parameters.get("rope_theta")
            for key in sorted(NUMBERS & parameters.keys()):
                if (number := _read_number(parameters[key])) is not None and not isfinite(number):
                    where, called = f"{path}.{key}", "NaN" if isnan(number) else "infinite"
                    odd[where] = f"{where} is {called}, and no released model has such a number"
            if _is_number(base) and LARGEST_BASE < base < inf:
                where = f"{path}.rope_theta"
                odd[where] = f"{where} is {base}, and no released model has a base above {LARGEST_BASE:.0e}"
    for each in resolved.parts:
        if (two := _find_two_bases(each)) is not None:
            odd.setdefault(f"{each.path}rope_theta", two)
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        is_epsilon = NORM_EPSILON.fullmatch(key) and key in part.config_class.types
        if is_epsilon and _is_number(value) and not EPSILONS[0] <= value <= EPSILONS[1]:
            odd[path] = f"{path} is {value}, and no released model has an epsilon outside of 1e-12 to 1e-3"
    for each in resolved.parts:
        for key, value in each.settings.items():
            path = f"{each.path}{key}"
            if (endless := _find_endless(each, key, value)) is not None:
                odd[path] = f"{path} is {endless}, and no released model has such a number"
                continue
            if not _is_number(value) or each.config_class.type_of(key) is None:
                continue
            size = _find_size(each, key)
            if type(value) is int and value >= HUGE and not UNBOUNDED.search(key):
                odd[path] = f"{path} is {value:,}, and no released model has a number as large"
            elif DROPOUT.search(key) and not 0 <= value <= 1:
                odd[path] = f"{path} is {value}, and a rate of dropout is from 0 to 1"
            elif HEADS.fullmatch(key) and size is not None and value > size > 0:
                odd[path] = (
                    f"{path} is {value:,}, and no released model has more heads than its hidden size of {size:,}"
                )
            elif (
                HEADS.fullmatch(key)
                and size is not None
                and type(value) is int
                and value > 0
                and size % value
                and not _is_default(each, key, value, size)
                and not _has_width(each)
                and not (table is not None and table.rounds_heads(path))
            ):
                odd[path] = f"{path} is {value:,}, which does not divide the hidden size of {size:,}"
            elif key in PATCHES and not 1 <= value <= LARGEST_PATCH:
                odd[path] = f"{path} is {value}, and no released model has patches of that size"
    told = {path for path in odd if _is_refused(ckpt, path)}
    for path, fault in odd.items():
        if path in told:
            continue
        yield Problem(fault, file=ckpt.config.file, key=path, hint="copy it from the model's own config")


def _find_endless(part: ResolvedPart, key: str, value: object) -> str | None:
    """Return NaN or infinity as it is called, where a field has it that the class has as a finite number; None for all others."""
    number = _read_number(value)
    default = part.config_class.defaults.get(key)
    if number is None or isfinite(number) or "float" not in (part.config_class.type_of(key) or ""):
        return None
    if isnan(number):
        return "NaN"
    is_bound = UNBOUNDED.search(key) is not None or not (_is_number(default) and isfinite(default))
    return None if is_bound else "infinite"


def _read_number(value: object) -> float | None:
    """Return a number with a decimal point, or NaN or infinity, as transformers reads it; None for all else."""
    if isinstance(value, dict):
        return READ_AS.get(str(value.get("__float__")))
    return value if isinstance(value, float) else None


def _find_two_bases(part: ResolvedPart) -> str | None:
    """Say where a config has two bases of its rotary embeddings: transformers 5 takes one of them, and 4 the other."""
    older = part.settings.get("rope_theta")
    newer = [
        (path, base)
        for path, parameters in iter_rope(part)
        if path.startswith(f"{part.path}rope_parameters") and _is_number(base := parameters.get("rope_theta"))
    ]
    if not _is_number(older) or not newer or not part.config_class.rope or older in {base for _, base in newer}:
        return None
    path, base = newer[0]
    return (
        f"{part.path}rope_theta is {older:,}, and {path}.rope_theta {base:,}: transformers 5 takes the second, and what is built "
        "on transformers 4 the first"
    )


def _find_size(part: ResolvedPart, key: str) -> int | None:
    """Return the hidden size of a part, of its encoder or decoder where the key is theirs; None where it is no number."""
    heads = HEADS.fullmatch(key)
    half = heads[1] or "" if heads is not None else ""
    names = [*(f"{half}{name}" for name in WIDTHS if half), *WIDTHS]
    setting = next((found for name in names if (found := part.find(name)) is not None), None)
    return setting.value if setting is not None and type(setting.value) is int else None


def _is_default(part: ResolvedPart, key: str, heads: int, size: int) -> bool:
    """Whether heads and hidden size are those that the class takes by itself, as Qwen3-Omni's does with 28 heads for 2,048."""
    defaults = part.config_class.defaults
    return defaults.get(key) == heads and any(defaults.get(name) == size for name in WIDTHS)


def _has_width(part: ResolvedPart) -> bool:
    """Whether the class, or the config, has a width of heads of its own."""
    return any(WIDTH_OF_HEADS.search(name) for name in (*part.config_class.types, *part.settings))


def _is_refused(ckpt: ConfiguredCheckpoint, path: str) -> bool:
    """Whether CFG024 reports the setting, for the model refuses it."""
    table, resolved = WeightsTable.of(ckpt.config), ckpt.config.resolved
    if resolved is not None and any(where == path for part in resolved.parts for where, _ in iter_wrong_rope(part)):
        return True
    if table is None or resolved is None:
        return False
    return any(where == path for where, _ in iter_refused_by_model(table, resolved))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
