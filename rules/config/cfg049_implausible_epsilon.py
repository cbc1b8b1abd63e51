"""The epsilon of the norms is one that no released model has.

## What it checks
In the language model's part of a config whose `model_type` transformers knows: the epsilon of the norms is between 1e-13 and
1e-2 (released models have 1e-12 to 1e-3).

## Why it matters
transformers, vLLM and SGLang compute with any epsilon, without a word: one of 1 makes every norm nearly a constant factor.

## How to fix
Copy the setting from the config of the model this one was trained or converted from.

## When it can be wrong
An epsilon that some other model has passes, however wrong it is for this one.

## Seen in
No public report: the epsilons of released configs were measured.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import NORM_EPSILON
from ckptcheck.checkpoint.setting_text import is_number
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

EPSILONS = (1e-13, 1e-2)
"""Released models have 1e-12 (BERT) to 1e-3 (BatchNorm in encoders); the bounds leave a factor of ten."""


@rule(
    "CFG049",
    "implausible-epsilon",
    severity="warning",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    part = ckpt.config.resolved.text if ckpt.config.resolved is not None else None
    for key, value in part.settings.items() if part is not None else ():
        is_epsilon = part is not None and NORM_EPSILON.fullmatch(key) and key in part.config_class.types
        if part is not None and is_epsilon and is_number(value) and not EPSILONS[0] <= value <= EPSILONS[1]:
            path = f"{part.path}{key}"
            yield Problem(
                f"{path} is {value}, and no released model has an epsilon outside of 1e-12 to 1e-3",
                file=ckpt.config.file,
                key=path,
                hint="copy it from the model's own config",
            )
