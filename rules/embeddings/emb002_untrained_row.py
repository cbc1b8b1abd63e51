"""Tokens that nothing uses have embeddings that were never trained.

## What it checks
The rows of EMB001, for tokens that neither the chat template nor a config uses: reserved tokens, mostly. Without a tokenizer
beside the weights, any such row but that of the padding token and those that a config uses. Where the tokenizer's ids are not
read (SentencePiece alone), the same, but up to an eighth of all rows at the end are taken for padding (EMB003). In a Megatron run
the last rows are left out, as many as its arguments may have padded the vocabulary with.

## Why it matters
Nothing happens until somebody uses the token: a new chat template, a tool format, a tokenizer with added tokens. Then
gradients are Inf from the first step.

## How to fix
Nothing, as long as the tokens stay unused. Initialise the rows before you give the tokens a meaning.

## When it can be wrong
Many sound models keep reserved tokens at zero: Llama 3 does, base and instruct alike. It is a warning for whoever will use one,
and says nothing against the model. A Megatron run whose arguments do not say to which multiple it pads may end in untrained rows
of tokens, which are then taken for padding. A multimodal checkpoint whose config does not name its placeholder token has one
such row.

## Seen in
unslothai/unsloth#658, OpenRLHF/OpenRLHF#648, NVIDIA-NeMo/Megatron-Bridge#4967
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.untrained import untrained
from ckptcheck.values.uses import listed


@rule("EMB002", "untrained-row", severity="warning", on="values", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        idle = [row for row in matrix.rows if row not in matrix.used and row not in matrix.padding]
        if idle:
            yield Problem(
                f"{count(len(idle), 'row is', 'rows are')} untrained (the first is {matrix.rows[min(idle)]}): "
                f"{listed(ckpt, idle)} ({matrix.summary})",
                file=matrix.file(idle),
                key=matrix.name,
                hint="initialise these rows before you give their tokens a meaning",
            )
