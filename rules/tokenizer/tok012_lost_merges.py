"""The tokenizer has lost the merges that make its tokens.

## What it checks
A byte-pair encoding (tokenizer.json, or vocab.json with merges.txt) has at least half as many merges as it has tokens of more
than one character. Added tokens are not counted, for no merge makes them, nor are the tokens of single bytes (`<0x0A>`). Nothing
is said where such tokens are few: fewer than 20, or less than half of the vocabulary.

## Why it matters
Each merge makes one token; a token that none makes never comes. Nothing fails: `Hello there world` becomes 17 tokens of one byte
in place of 3, for the same ids mean the same rows. The model reads what it was never trained on, prompts grow several times,
and rollouts are cut off at their length.

## How to fix
Take tokenizer.json (or merges.txt) of the model this one was made from.

## When it can be wrong
A vocabulary of whole words that was put into a BPE without merges on purpose, and is looked up as it stands
(`ignore_merges`): that is quiet below 10,000 tokens. Half of the merges may be lost and nothing is said.

## Seen in
Made by hand and tried with transformers 5.23 and tokenizers 0.23; vocabularies extended by hand show it in part.
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
FEW, MANY = 20, 10_000


@rule("TOK012", "lost-merges", severity="error", when=lambda ckpt: ckpt.tokenizer is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.tokenizer is not None
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or not vocabulary.readable or vocabulary.merges is None:
        return
    added = ckpt.tokenizer.added
    long = sum(len(token) > 1 and token not in added and not BYTE.fullmatch(token) for token in vocabulary.model)
    least = MANY if vocabulary.looks_words_up else FEW
    if long >= least and long * 2 >= len(vocabulary.model) and vocabulary.merges * 2 < long:
        file = vocabulary.file if vocabulary.file == "tokenizer.json" else "merges.txt"
        yield Problem(
            f"it has {vocabulary.merges:,} merges for {long:,} tokens of more than one character; each token needs one, so text "
            "falls into smaller pieces than the model was trained on",
            file=file,
            key="model.merges" if file == "tokenizer.json" else None,
            hint="take the tokenizer's files of the model this one was made from",
        )
