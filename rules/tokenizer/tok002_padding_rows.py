"""The embedding has many more rows than the tokenizer has tokens.

## What it checks
At most 2,048 rows of the embedding (or 4 % of its rows, if that is more) have no token.

Some rows without a token are usual, because tables are padded to divide among GPUs. Megatron pads to a multiple of 128 times the
tensor parallelism (2,048 for 16). Qwen2.5 has 271 such rows of 151,936, gpt-oss 1,069, DeepSeek-V2 some 2,400 of 102,400. Rows
that the tokenizer names and keeps free (`[unused12]`) have a token.

## Why it matters
Padding does not explain a larger gap: the tokenizer may be another model's, or its added tokens were not saved. Nothing fails
then, and the model reads other text than it was trained on. Intended rows do no harm, but
`resize_token_embeddings(len(tokenizer))` cuts them off without a warning.

## How to fix
Compare the tokenizer with that of the model this one was made from. If the rows are intended, ignore this rule.

## When it can be wrong
A model may have rows for images, speech or later use that no token of the tokenizer names.

## Seen in
OpenHelix-Team/ReconVLA#7, unslothai/unsloth-zoo#923, huggingface/transformers#4875, NVIDIA-NeMo/Megatron-Bridge#625
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

PADDING, PART = 2048, 25
"""Rows, and one of so many, that padding explains."""


@rule(
    "TOK002",
    "padding-rows",
    severity="info",
    on="tokenizer",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    vocabulary, table = ckpt.tokenizer.require_vocabulary(), find_embedding_table(ckpt)
    if table is None:
        return
    tokens = ckpt.tokenizer.max_id + 1
    unused = table.rows - tokens
    if unused > PADDING and unused * PART > table.rows:  # in integers: a config may hold a number beyond any float
        multiple = next((size for size in (1024, 512, 256, 128, 64) if table.rows % size == 0), None)
        padded = f", although {table.rows:,} is a multiple of {multiple}" if multiple else ""
        yield Problem(
            f"it has {table.rows:,} rows, but {vocabulary.file} has {tokens:,} tokens: "
            f"{unused:,} rows without a token are more than padding explains{padded}",
            file=table.file,
            key=table.key,
            hint="compare the tokenizer with that of the model this one was made from",
        )
