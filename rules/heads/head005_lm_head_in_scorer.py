"""A reward model or critic still has its language-modelling head.

## What it checks
Beside a reward or value head, in an architecture that scores sequences or tokens, there is no head of the vocabulary
(`lm_head.weight`).

## Why it matters
transformers and vLLM leave it out. It takes vocabulary × hidden elements in every save, and tells converters that this is a
language model.

## How to fix
Save the model with the class that scores, or take the tensor out.

## When it can be wrong
A model that is policy and critic in one needs both; its architecture then says so, and is no scorer's. Some reward models
keep the head on purpose to be asked as a language model too. `--ignore HEAD005` silences it.

## Seen in
The design of ROLL's critic, which sets the output layer to None
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.heads import is_scorer
from ckptcheck.phrase import shape


@rule(
    "HEAD005",
    "lm-head-in-scorer",
    severity="info",
    when=lambda ckpt: is_scorer(ckpt.config) and bool(ckpt.anatomy.scores) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    if (head := ckpt.anatomy.head) is not None and head not in ckpt.anatomy.scores:
        yield Problem(
            f"{ckpt.config.architecture} loads no head of the vocabulary, and one of {shape(ckpt.tensors[head].shape)} is stored",
            file=ckpt.holders[head],
            key=head,
            hint="save the model with the class that scores",
        )
