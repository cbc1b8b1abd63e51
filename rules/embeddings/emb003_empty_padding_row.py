"""Rows of padding are empty.

## What it checks
The untrained rows of EMB001 that no token has, because the vocabulary is padded to a multiple, that of the padding token, and
those of placeholders that the output of an image or audio encoder replaces. The input row of config.json's pad_token_id also
where it is eos too: `padding_idx` of torch keeps it at zero, and the model was trained with it so. Not of a Megatron run: its
vocabulary is padded as a rule, and MEG022 looks at that.

## Why it matters
It does not, and this says that it was looked at: whoever resizes the embedding or adds tokens gets these rows first.

## How to fix
Nothing. Initialise the rows before you give them tokens.

## When it can be wrong
It is true of many sound models. Where the tokenizer's ids are not read (SentencePiece alone), nobody knows where its tokens end:
of the empty rows at the end, up to an eighth of all, this says only that they may be padding.

## Seen in
huggingface/transformers#4875, NVIDIA-NeMo/Megatron-Bridge#5375
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.untrained import untrained
from ckptcheck.values.uses import listed


@rule("EMB003", "empty-padding-row", severity="info", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        for rows, one, several in (
            (matrix.padding - matrix.tail, "row of padding is empty", "rows of padding are empty"),
            (
                matrix.padding & matrix.tail,
                "last row is empty and may be padding",
                "last rows are empty and may be padding",
            ),
        ):
            if rows:
                yield Problem(
                    f"{count(len(rows), one, several)}: {listed(ckpt, rows)}",
                    file=matrix.file(rows),
                    key=matrix.name,
                    hint="nothing to do, unless you give these rows tokens",
                )
