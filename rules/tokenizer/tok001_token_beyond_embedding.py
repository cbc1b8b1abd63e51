"""A token's id lies beyond the rows of the embedding.

## What it checks
The id of every token of the tokenizer is smaller than the number of rows of the token embedding. Ids are those that the
library `tokenizers` gives, tokens that tokenizer_config.json adds included: `added_tokens_decoder`, and those among
`extra_special_tokens`, `additional_special_tokens` and further names (`boi_token`) that tokenizer.json lacks, which transformers
appends. Those of added_tokens.json count where tokenizer_config.json has no `added_tokens_decoder`; beside it, transformers does
not read that file. A new bos, eos or padding token is TOK009's.

## Why it matters
As soon as such a token comes up, transformers stops with an IndexError, and a GPU with a device-side assertion that
names another line. Mostly a token (for padding, for chat) was added and the embedding was not resized, or the
tokenizer is that of another model.

## How to fix
Resize the embedding (`model.resize_token_embeddings(len(tokenizer))`) and save again, or save the model's own tokenizer.

## When it can be wrong
Text-only models of a multimodal family keep its placeholder for images beyond their rows (Gemma 3 1B: 262,144 rows, and
`<image_soft_token>` has the id 262,144), which is harmless until somebody writes it. Placeholders for images, audio and
video are passed over unless something in the checkpoint uses them. A list of special tokens copied from a
sibling with more rows is as harmless until one is written; but anybody may write one, so it is reported.

## Seen in
EuroEval/EuroEval#52, meta-llama/llama-cookbook#189, haotian-liu/LLaVA#94, fc2869/lo-fit#1
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.document import clipped
from ckptcheck.phrase import count

PLACEHOLDER = re.compile(r"(?i)[<\[].*(image|img|video|vision|audio|speech|sound).*[>\]]")


@rule(
    "TOK001",
    "token-beyond-embedding",
    severity="error",
    when=lambda ckpt: ckpt.tokenizer is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    from ckptcheck.checkpoint.vocabulary import table_of

    assert ckpt.tokenizer is not None
    vocabulary, table = ckpt.tokenizer.require_vocabulary(), table_of(ckpt)
    if table is None:
        return
    roles = {role.token for role in ckpt.tokenizer.roles}
    appended = {token: number for token, number in ckpt.tokenizer.appended.items() if token not in roles}
    beyond = {number: token for token, number in (vocabulary.ids | appended).items() if number >= table.rows}
    for number, token in list(beyond.items()):
        if PLACEHOLDER.fullmatch(token) and ckpt.tokenizer.used(number) is None:
            del beyond[number]
    if beyond:
        first = min(beyond)
        others = f", and {count(len(beyond) - 1, 'more token')}" if len(beyond) > 1 else ""
        yield Problem(
            f"the embedding has {table.rows:,} rows, but {clipped(beyond[first], 40)} has the id {first:,}{others}; "
            "transformers stops with an IndexError where one comes up, a GPU with an assertion",
            file="tokenizer_config.json" if beyond[first] in appended else vocabulary.file,
            hint="resize the embedding and save again, or save the model's own tokenizer",
        )
