"""The tokenizer has lost the merges that make its tokens, or their order.

## What it checks
A byte-pair encoding (tokenizer.json, or vocab.json with merges.txt) has at least half as many merges as it has tokens of more than
one character. Added tokens and the tokens of single bytes (`<0x0A>`) do not count, because no merge makes them. The rule reports
nothing if there are few such tokens: fewer than 20, or less than half of the vocabulary.

Of 1,000 merges or more, it also warns of a list in which more than three in ten join a part that only later merges make; in a long
list it looks at some 20,000 of them. Training makes each token of earlier ones, so there are none in SmolLM2, DeepSeek V3
and Claude 2; conversions that list every way to cut a token have 16 to 20 % (Gemma 3, r50k, cl100k and o200k of tiktoken). A
shuffled list has 43 to 61 %, one whose halves are exchanged 48 to 55 %, a reversed one 86 to 97 %.

## Why it matters
Each merge makes one token, and a token without a merge never occurs. Nothing fails: `Hello there world` becomes 17 tokens of one
byte in place of 3, and the same ids mean the same rows. The model reads what it was never trained on, prompts grow several times,
and rollouts are cut off at their length. Merges in another order split the words in other places, with the same effect.

## How to fix
Take tokenizer.json (or merges.txt) of the model this one was made from.

## When it can be wrong
- A vocabulary of whole words may be a BPE without merges on purpose and look its words up as they are (`ignore_merges`). Below
  10,000 tokens such a vocabulary is not reported.
- It misses a tokenizer that lost up to half of its merges, and merges sorted by their letters (14 to 68 % late ones).

## Seen in
Made by hand and tried with transformers 5.23 and tokenizers 0.23; vocabularies extended by hand show it in part.
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
MIN_TOKENS, MIN_WORD_TOKENS = 20, 10_000
MIN_ORDERED = 1_000
"""Fewest merges for which their order is judged."""
MAX_LATE = 0.3
"""Largest accepted share of merges with a part that only later merges make."""


@rule("TOK012", "lost-merges", severity="error", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or not vocabulary.readable or vocabulary.merge_count is None:
        return
    added = ckpt.tokenizer.added_tokens
    multi_character = sum(
        len(token) > 1 and token not in added and not BYTE.fullmatch(token) for token in vocabulary.model
    )
    file = vocabulary.file if vocabulary.file == "tokenizer.json" else "merges.txt"
    key = "model.merges" if file == "tokenizer.json" else None
    hint = "take the tokenizer's files of the model this one was made from"
    least = MIN_WORD_TOKENS if vocabulary.ignore_merges else MIN_TOKENS
    if (
        multi_character >= least
        and multi_character * 2 >= len(vocabulary.model)
        and vocabulary.merge_count * 2 < multi_character
    ):
        yield Problem(
            f"it has {vocabulary.merge_count:,} merges for {multi_character:,} tokens of more than one character; "
            "each token needs one, so text "
            "falls into smaller pieces than the model was trained on",
            file=file,
            key=key,
            hint=hint,
        )
    elif vocabulary.merge_count >= MIN_ORDERED and vocabulary.late_merge_share > MAX_LATE:
        yield Problem(
            f"{vocabulary.late_merge_share:.0%} of its {vocabulary.merge_count:,} merges join a part that only later merges "
            "make: they are not in the order of their training, so text falls into other pieces than the model was trained on",
            file=file,
            key=key,
            hint=hint,
            severity="warning",
        )
