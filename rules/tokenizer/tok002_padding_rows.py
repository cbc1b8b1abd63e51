"""The embedding has many more rows than the tokenizer has tokens.

## What it checks
The embedding has at most 2,048 rows (or 4 % of its rows, where that is more) for which there is no token.

Some rows without a token are usual: the table is padded so that it divides among GPUs. Megatron pads to a multiple of 128
times the tensor parallelism (2,048 for 16), Qwen2.5 has 271 such rows of 151,936, gpt-oss 1,069, DeepSeek-V2 some 2,400 of
102,400. Those are passed over, and so are rows that the tokenizer names and keeps free (`[unused12]`).

## Why it matters
A larger gap is explained by no padding: the tokenizer may be another model's, or its added tokens were not saved. Nothing
fails then, and the text that goes in is another than the one the model was trained on. Where the rows are meant they are
harmless; but `resize_token_embeddings(len(tokenizer))` cuts them off without a word.

## How to fix
Compare the tokenizer with that of the model this one was made from. If the rows are meant, ignore this rule.

## When it can be wrong
Models whose table has rows for images, speech or later use, which no token of the tokenizer names.

## Seen in
OpenHelix-Team/ReconVLA#7, unslothai/unsloth-zoo#923, huggingface/transformers#4875, NVIDIA-NeMo/Megatron-Bridge#625
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

PADDING, SHARE = 2048, 0.04


@rule(
    "TOK002",
    "padding-rows",
    severity="info",
    when=lambda ckpt: ckpt.tokenizer is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import table_of

    assert ckpt.tokenizer is not None
    vocabulary, table = ckpt.tokenizer.require_vocabulary(), table_of(ckpt)
    if table is None:
        return
    tokens = ckpt.tokenizer.max_id + 1
    if table.rows - tokens > max(PADDING, SHARE * table.rows):
        multiple = next((size for size in (1024, 512, 256, 128, 64) if table.rows % size == 0), None)
        padded = f", although {table.rows:,} is a multiple of {multiple}" if multiple else ""
        yield Problem(
            f"it has {table.rows:,} rows, but {vocabulary.file} has {tokens:,} tokens: "
            f"{table.rows - tokens:,} rows without a token are more than padding explains{padded}",
            file=table.file,
            key=table.key,
            hint="compare the tokenizer with that of the model this one was made from",
        )
