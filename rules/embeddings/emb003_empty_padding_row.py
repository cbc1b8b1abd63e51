"""Rows of padding are empty.

## What it checks
Untrained rows, as EMB001 defines it, that the model never reads:
- rows without a token, because the vocabulary is padded to a multiple;
- rows from `unpadded_vocab_size` on, where the config says that the vocabulary is padded;
- the row of the padding token, and of placeholders that the output of an image or audio encoder replaces;
- the embedding row of config.json's pad_token_id, also if that is eos too: `padding_idx` of torch keeps it at zero, and the model
  was trained with it so;
- the one zero row of an embedding, where neither a config nor a tokenizer lies beside the weights: it may be that of padding.

It leaves out Megatron runs: their vocabulary is padded as a rule, and MEG023 checks that.

## Why it matters
These rows do no harm. The finding records that they were checked: whoever resizes the embedding or adds tokens gets them first.

## How to fix
Nothing. Initialise the rows before you give them tokens.

## When it can be wrong
- Many sound models have such rows.
- If the tokenizer's ids cannot be read (SentencePiece alone), the number of tokens is unknown. Of the empty rows at the end, up to
  an eighth of all, the message only says that they may be padding.

## Seen in
huggingface/transformers#4875, NVIDIA-NeMo/Megatron-Bridge#5375
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.token_usage import format_tokens
from ckptcheck.values.detectors.untrained_rows import find_untrained_rows


@rule("EMB003", "empty-padding-row", severity="info", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in find_untrained_rows(ckpt):
        for rows, one, several in (
            (
                matrix.padding_rows - matrix.tail_rows - matrix.unnamed_padding,
                "row of padding is empty",
                "rows of padding are empty",
            ),
            (
                matrix.unnamed_padding - matrix.tail_rows,
                "row is empty, as that of a padding token is",
                "rows are empty, as that of a padding token is",
            ),
            (
                matrix.padding_rows & matrix.tail_rows,
                "last row is empty and may be padding",
                "last rows are empty and may be padding",
            ),
        ):
            if rows:
                yield Problem(
                    f"{count(len(rows), one, several)}: {format_tokens(ckpt, rows)}",
                    file=matrix.file(rows),
                    key=matrix.name,
                    hint="nothing to do, unless you give these rows tokens",
                )
