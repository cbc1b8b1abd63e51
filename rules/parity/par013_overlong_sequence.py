"""A sequence is longer than the engine was allowed to make it.

## What it checks
Where max_model_len is recorded: that no sequence, prompt and response together, has more tokens.

## Why it matters
An engine that goes past its limit runs beyond the positions it was set up for: rotary tables, cache blocks, the trainer's
own sequence length. The last tokens of such a sequence are wrong, or are cut off in training.

## How to fix
Correct the limit of the engine, and see whether it counts the prompt.

## When it can be wrong
A trajectory that is put together of several requests, with a context that was cut or summed up between them, may be
longer than any one request was. Record its requests one by one. And `max_model_len` may be the trainer's, or that of
another engine of the fleet: correct it in the metadata. That responses end too early is not looked at.

## Seen in
NeMo-RL tools/model_diagnostics/1.max_model_len_respected.py exists because of it
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count


@rule(
    "PAR013",
    "overlong-sequence",
    severity="error",
    on="rollouts",
    when=lambda judged: judged.sound and judged.rollouts.metadata.max_model_len is not None,
)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    most = judged.rollouts.metadata.max_model_len
    assert most is not None
    lengths = np.diff(judged.rollouts.starts)
    longer = np.flatnonzero(lengths > most)
    if len(longer):
        worst = int(longer[lengths[longer].argmax()])
        text = f"{count(len(longer), 'sequence')}: more than the {most:,} tokens of max_model_len, this one {int(lengths[worst]):,}"
        yield Problem(text, key=f"sequence {worst}", hint="see whether the engine's limit counts the prompt")
