"""The model of tokenizer.json splits text in a way that no model was trained with.

## What it checks
Three things of `model` in tokenizer.json:

- no two tokens of `vocab` have one id;
- `dropout` of a byte-pair encoding is null or zero;
- where a byte-pair encoding has an `end_of_word_suffix`, some token ends with it.

## Why it matters
The library `tokenizers` loads all three without a word.

- Of two tokens with one id, one reads and writes the row of the other, and the row of its own id is never used.
- With dropout, which is for training, the tokenizer skips merges by chance: the same prompt becomes 14 tokens, or 20 (with 0.5).
- With a suffix that no token has, the last letter of each word is unknown and lost: `Hello there` is read as `Hell ther`.

## How to fix
Take tokenizer.json of the model this one was made from, or set `dropout` to null.

## When it can be wrong
- Classes of transformers 5 that build their own model, such as GPT2Tokenizer, read neither `dropout` nor the suffix from the file.
- A tokenizer may give an alias of a token the id of that token on purpose.

## Seen in
Made by hand and tried with transformers 5.24 and tokenizers 0.23
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import count

HINT = "take tokenizer.json of the model this one was made from"


@rule("TOK018", "odd-token-model", severity="warning", on="tokenizer")
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    vocabulary = ckpt.tokenizer.vocabulary
    if vocabulary is None or not vocabulary.readable or vocabulary.file != "tokenizer.json":
        return
    by_id: dict[int, str] = {}
    twins = [
        (by_id[number], token) for token, number in vocabulary.model.items() if by_id.setdefault(number, token) != token
    ]
    if twins:
        first, other = (clip(repr(token), 40) for token in twins[0])
        yield Problem(
            f"model.vocab gives {count(len(twins), 'pair')} of tokens one id, such as {first} and {other} "
            f"({vocabulary.model[twins[0][0]]:,}): the model reads and writes one for the other",
            file=vocabulary.file,
            key="model.vocab",
            hint=HINT,
        )
    if vocabulary.dropout > 0:
        yield Problem(
            f"a merge is left out with a chance of {vocabulary.dropout:g}: the same text becomes other tokens each time, "
            "which is for training only",
            file=vocabulary.file,
            key="model.dropout",
            hint="set it to null",
        )
    if vocabulary.word_end and not any(token.endswith(vocabulary.word_end) for token in vocabulary.model):
        yield Problem(
            f"each word ends with {clip(repr(vocabulary.word_end), 40)}, and no token does: the last character of each is unknown",
            file=vocabulary.file,
            key="model.end_of_word_suffix",
            hint=HINT,
        )
