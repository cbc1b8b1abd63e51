"""A token's id lies beyond the rows of the embedding, or many rows have no token.

## What it checks
The id of every token is smaller than the number of rows of the token embedding. The tokens are:
- those that the library `tokenizers` reads from the tokenizer's files;
- those that tokenizer_config.json adds: `added_tokens_decoder`, and tokens of `extra_special_tokens`,
  `additional_special_tokens` and further names (`boi_token`) that tokenizer.json lacks, which transformers appends;
- without a tokenizer.json, the pieces of a SentencePiece model that numbers the tokens (which no vocab.json or dict.txt does).
  Some classes put further tokens before the pieces (XLM-R), and the code of a repository may add tokens: those are not counted.
- the tokens of added_tokens.json, if tokenizer_config.json has no `added_tokens_decoder` (else transformers ignores the file).

TOK009 reports a new bos, eos or padding token.

At most 2,048 rows of the embedding (or 4 % of its rows, if that is more) have no token (an info). Tables are padded to divide among
GPUs: Megatron pads to a multiple of 128 times the tensor parallelism (2,048 for 16). Qwen2.5 has 271 such rows of 151,936, gpt-oss
1,069, DeepSeek-V2 some 2,400 of 102,400. Rows that the tokenizer names and keeps free (`[unused12]`) have a token.

## Why it matters
As soon as such a token occurs, transformers raises an IndexError, and on a GPU a device-side assertion fails that names another
line. Usually a token (for padding, for chat) was added and the embedding was not resized, or the tokenizer is another model's.

Padding does not explain a larger gap: the tokenizer may be another model's, or its added tokens were not saved. Nothing fails then,
and the model reads other text than it was trained on. `resize_token_embeddings(len(tokenizer))` cuts such rows off without a
warning.

## How to fix
Resize the embedding (`model.resize_token_embeddings(len(tokenizer))`) and save again, or save the model's own tokenizer.

## When it can be wrong
- Text-only models of a multimodal family keep the family's image placeholder beyond their rows (Gemma 3 1B: 262,144 rows, and
  `<image_soft_token>` has the id 262,144). It is harmless until somebody writes it. Placeholders for images, audio and video are
  left out unless something in the checkpoint uses them.
- Special tokens copied from a sibling with more rows are as harmless until somebody writes one. Any user may, so they are reported.
- A model may have rows for images, speech or later use that no token of the tokenizer names.

## Seen in
EuroEval/EuroEval#52, meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94, fc2869/lo-fit#1; OpenHelix-Team/ReconVLA#7,
unslothai/unsloth-zoo#923, huggingface/transformers#4875 and NVIDIA-NeMo/Megatron-Bridge#625 (rows without a token)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.token_search import LONGEST_TOKEN
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.checkpoint.embedding_table import EmbeddingTable

PADDING, PART = 2048, 25
"""Rows, and one of so many, that padding explains."""
PLACEHOLDER = re.compile(r"(?i)[<\[](?>.*?(image|img|video|vision|audio|speech|sound)).*[>\]]")


@rule(
    "TOK001",
    "token-beyond-embedding",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.embedding_table import find_embedding_table

    table = find_embedding_table(ckpt)
    if table is not None and ckpt.tokenizer.vocabulary is None:
        yield from _check_token_files(ckpt, table)
    vocabulary = ckpt.tokenizer.require_vocabulary()
    if table is None:
        return
    yield from _check_padding(ckpt, table, vocabulary.file)
    roles = {role.token for role in ckpt.tokenizer.roles}
    appended = {token: number for token, number in ckpt.tokenizer.implicit_added_tokens.items() if token not in roles}
    beyond = {number: token for token, number in (vocabulary.ids | appended).items() if number >= table.rows}
    for number, token in list(beyond.items()):
        if _is_placeholder(token) and ckpt.tokenizer.why_used(number) is None:
            del beyond[number]
    if beyond:
        first = min(beyond)
        others = f", and {count(len(beyond) - 1, 'more such token')}" if len(beyond) > 1 else ""
        yield Problem(
            f"the embedding has {table.rows:,} rows, but {clip(beyond[first], 40)} has the id {first:,}{others}; "
            "transformers raises an IndexError at such a token, and on a GPU a device-side assertion fails",
            file="tokenizer_config.json" if beyond[first] in appended else vocabulary.file,
            hint="resize the embedding and save again, or save the model's own tokenizer",
            names=tuple(beyond[number] for number in sorted(beyond)),
        )


def _check_padding(ckpt: TokenizedCheckpoint, table: EmbeddingTable, file: str) -> Iterator[Problem]:
    """Yield the rows without a token, if they are more than padding."""
    tokens = ckpt.tokenizer.max_id + 1
    unused = table.rows - tokens
    if unused > PADDING and unused * PART > table.rows:  # in integers: a config may hold a number beyond any float
        multiple = next((size for size in (1024, 512, 256, 128, 64) if table.rows % size == 0), None)
        padded = f", although {table.rows:,} is a multiple of {multiple}" if multiple else ""
        yield Problem(
            f"it has {table.rows:,} rows, but {file} has {tokens:,} tokens: "
            f"{unused:,} rows without a token are more than padding explains{padded}",
            file=table.file,
            key=table.key,
            severity="info",
            hint="compare the tokenizer with that of the model this one was made from",
        )


def _is_placeholder(token: str) -> bool:
    return len(token) <= LONGEST_TOKEN and PLACEHOLDER.fullmatch(token) is not None


def _check_token_files(ckpt: TokenizedCheckpoint, table: EmbeddingTable) -> Iterator[Problem]:
    """Yield the SentencePiece models that have more tokens than the embedding has rows.

    Of a tokenizer that is not read as a whole, the added tokens have known ids all the same.
    """
    for token in ckpt.tokenizer.declared:
        if token.id >= table.rows and not _is_placeholder(token.content):
            yield Problem(
                f"the embedding has {table.rows:,} rows, but {clip(token.content, 40)} has the id {token.id:,}; "
                "transformers raises an IndexError at such a token, and on a GPU a device-side assertion fails",
                file="tokenizer_config.json" if ckpt.tokenizer.is_declared else "added_tokens.json",
                hint="resize the embedding and save again, or save the model's own tokenizer",
            )
            return
    for each in ckpt.tokenizer.piece_files:
        if each.defects or not each.numbers_tokens:
            continue
        beyond = [number for number in range(table.rows, len(each.pieces)) if not _is_placeholder(each.pieces[number])]
        if beyond:
            yield Problem(
                f"the embedding has {table.rows:,} rows, and {each.file} has tokens up to the id {beyond[-1]:,}, such as "
                f"{clip(each.pieces[beyond[0]], 40)} ({beyond[0]:,}); transformers raises an IndexError at such a token, and on a "
                "GPU a device-side assertion fails",
                file=each.file,
                hint="save the model's own tokenizer",
            )
