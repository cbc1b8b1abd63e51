"""The tokenizer loads, and then stops at a text.

## What it checks
- Each token that a template of the post-processor puts around texts is described beside it, in `special_tokens`.
- The library `tokenizers` encodes a text of rare characters, which no vocabulary has, with tokenizer.json (a warning).

## Why it matters
- A framing token that `special_tokens` does not describe ends `tokenizers` at every text, with a panic that names no token.
- A tokenizer without bytes and without a token for what is unknown (`unk_token`, `unk_id`) stops with an exception at the first
  character that its vocabulary lacks: a request of a user, or a step of the training.

## How to fix
Save the tokenizer again, or copy tokenizer.json from the model this one was made from. Name the token for unknown characters.

## When it can be wrong
An alphabet without a token for the unknown is right where nothing else can come, as for molecules; some classes of transformers
bring their own.

## Seen in
Tried with tokenizers 0.23: WordLevel, WordPiece, Unigram and BPE each stop in words of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint


@rule(
    "TOK021",
    "failing-encoding",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: ckpt.tokenizer.vocabulary is not None and ckpt.tokenizer.vocabulary.file == "tokenizer.json",
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    for framing in ckpt.tokenizer.require_vocabulary().framing:
        if framing.ids is None:
            yield Problem(
                f"the post-processor puts {clip(framing.token, 40)} around texts, and its special_tokens do not describe it: the "
                "library tokenizers panics at every text",
                file="tokenizer.json",
                key=framing.key,
                hint="save the tokenizer again, or copy its files from the model this one was made from",
            )
    trial = ckpt.tokenizer.trial
    if trial is not None and trial.unencodable is not None:
        yield Problem(
            f"the library tokenizers stops at a character that the vocabulary lacks: {trial.unencodable}",
            file="tokenizer.json",
            key="model",
            severity="warning",
            hint="name the token for unknown characters: unk_token, or unk_id of a Unigram model",
        )
