"""A token's id lies beyond the rows of the embedding.

## What it checks
The id of every token is smaller than the number of rows of the token embedding. The tokens are:
- those that the library `tokenizers` reads from the tokenizer's files;
- those that tokenizer_config.json adds: `added_tokens_decoder`, and tokens of `extra_special_tokens`,
  `additional_special_tokens` and further names (`boi_token`) that tokenizer.json lacks, which transformers appends;
- without a tokenizer.json, the pieces of a SentencePiece model that numbers the tokens (which no vocab.json or dict.txt does).
  Some classes put further tokens before the pieces (XLM-R), and the code of a repository may add tokens: those are not counted.
- the tokens of added_tokens.json, if tokenizer_config.json has no `added_tokens_decoder` (else transformers ignores the file).

TOK009 reports a new bos, eos or padding token.

## Why it matters
As soon as such a token occurs, transformers raises an IndexError, and on a GPU a device-side assertion fails that names another
line. Usually a token (for padding, for chat) was added and the embedding was not resized, or the tokenizer is another model's.

## How to fix
Resize the embedding (`model.resize_token_embeddings(len(tokenizer))`) and save again, or save the model's own tokenizer.

## When it can be wrong
- Text-only models of a multimodal family keep the family's image placeholder beyond their rows (Gemma 3 1B: 262,144 rows, and
  `<image_soft_token>` has the id 262,144). It is harmless until somebody writes it. Placeholders for images, audio and video are
  left out unless something in the checkpoint uses them.
- Special tokens copied from a sibling with more rows are as harmless until somebody writes one. Any user may, so they are reported.

## Seen in
EuroEval/EuroEval#52, meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94, fc2869/lo-fit#1
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
