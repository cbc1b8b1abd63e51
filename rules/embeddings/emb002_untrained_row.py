"""Tokens that nothing uses have embeddings that were never trained.

## What it checks
The rows of EMB001, for tokens that neither the chat template nor a config uses: reserved tokens, mostly. Without a tokenizer
beside the weights, any such row but that of the padding token and those that a config uses. Where the tokenizer's ids are not
read (SentencePiece alone), the same, but up to an eighth of all rows at the end are taken for padding (EMB003). In a Megatron run
the last rows are left out, as many as its arguments may have padded the vocabulary with.

Rows of words are told apart: tokens of the tokenizer's own vocabulary that nobody added, reserved or gave a part.

## Why it matters
Nothing happens until somebody uses the token: a new chat template, a tool format, a tokenizer with added tokens. Then
gradients are Inf from the first step. Words are different: any text may hold them. Their rows are empty where a write or a rank
was lost (VAL005 sees large pieces), or where the training data never held them and weight decay wore them down.

## How to fix
Nothing, as long as the tokens stay unused. Initialise the rows before you give the tokens a meaning. Where they are words, compare
the file's hash with the original's; if it agrees, keep the words out of your prompts or train them.

## When it can be wrong
Many sound models keep reserved tokens at zero: Llama 3 does, base and instruct alike. Large vocabularies have words that no
training text held, bytes that stand in no text among them. It is a warning for whoever will use one,
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
from ckptcheck.values.uses import listed, words


@rule("EMB002", "untrained-row", severity="warning", on="values", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        idle = [row for row in matrix.rows if row not in matrix.used and row not in matrix.padding]
        plain = set(words(ckpt, idle))
        for rows, one, several, hint in (
            (
                [row for row in idle if row not in plain],
                "row is untrained",
                "rows are untrained",
                "initialise these rows before you give their tokens a meaning",
            ),
            (
                sorted(plain),
                "word has an untrained row",
                "words have untrained rows",
                "compare the file's hash with the original's: any text may hold these tokens",
            ),
        ):
            if rows:
                yield Problem(
                    f"{count(len(rows), one, several)} (the first is "
                    f"{matrix.rows[min(rows)]}): {listed(ckpt, rows)} ({matrix.summary})",
                    file=matrix.file(rows),
                    key=matrix.name,
                    hint=hint,
                )
