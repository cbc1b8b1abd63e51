"""A reward model or critic still has its language-modelling head.

## What it checks
An architecture that scores sequences or tokens, with a reward or value head, has no `lm_head.weight`.

## Why it matters
transformers and vLLM omit it. It takes vocabulary × hidden elements in every save, and makes converters treat the critic as a
language model.

## How to fix
Save the model with the class that scores, or remove the tensor.

## When it can be wrong
A model that is both policy and critic needs both; its architecture then is not a scorer's. Some reward models keep the head
on purpose to be asked as a language model too. `--ignore HEAD005` silences it.

## Seen in
The design of ROLL's critic, which sets the output layer to None
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import is_scorer
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.text.formatting import format_shape


@rule(
    "HEAD005",
    "lm-head-in-scorer",
    severity="info",
    on="config",
    when=lambda ckpt: is_scorer(ckpt.config) and bool(ckpt.components.score_head_tensors) and not ckpt.is_partial,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    if (head := ckpt.components.lm_head) is not None and head not in ckpt.components.score_head_tensors:
        yield Problem(
            f"{ckpt.config.architecture} loads no LM head, but one of shape "
            f"{format_shape(ckpt.tensors[head].shape)} is stored",
            file=ckpt.tensor_to_file[head],
            key=head,
            hint="save the model with the class that scores",
        )
