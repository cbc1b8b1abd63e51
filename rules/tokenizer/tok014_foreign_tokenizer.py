"""The tokenizer does not belong to the embedding, or its ids miss their rows.

## What it checks
A word and its forms (after a space, with a capital letter, in the plural) have similar rows in every trained model. The rule
compares the rows of such tokens, about the mean of all rows, in the embedding and in a separate head:

- Their mean cosine is at least 0.25 as the ids are; or no tail of the ids can be shifted, by up to 1,024 rows, so that it becomes
  that and four times as large as it was. The message names the first shifted id, exactly or up to the next word.
- They are more alike than other pairs of tokens with nearby ids. Of a tail of the ids (at least 200 pairs) the same is asked.

| mean cosine | as it is | ids one off | another tokenizer | the same, less that of nearby pairs |
|---|---|---|---|---|
| SmolLM2-135M-Instruct (17,324 pairs) | 0.60 | 0.01 | 0.03 and 0.11 | 0.00 |
| all-MiniLM-L6-v2 (2,907 pairs) | 0.66 | 0.01 | 0.00 and 0.05 | 0.00 |
| a small Llama after 100 and 300 steps of training | 0.05 and 0.12 | 0.00 | 0.00 | 0.00 |

In these models no eighth of the pairs, by id, has less than 0.54. Rows that were never trained show no structure, and are not
judged; neither are vocabularies with fewer than 200 pairs (bytes, proteins, sounds), 8-bit and packed rows, checkpoints with two
tokenizers. EMB008 reports an embedding or a head that disagrees with the other.

It compares the first 8 bytes of the rows, which the scan has anyway. It reads the matrix again only if these disagree, in all ids
or in an eighth of them.

## Why it matters
Every engine and trainer looks up row i for token i. With another tokenizer, or a token inserted in the middle, the model reads
and writes other words than the text has: output is noise, and no shape, size or name shows it.

## How to fix
Take the tokenizer that the model was trained with. If ids are shifted from some id on, look there for the token that was inserted
or lost.

## When it can be wrong
- The embedding was trained for a tokenizer that is not this folder's, on purpose: the rows are about to be trained anew.
- It misses shifts that reach less than an eighth of the words, tokens that were exchanged one by one, and a vocabulary whose
  words are not written in ASCII letters.
- It says nothing of a model whose related tokens have a mean cosine between 0.02 and 0.25: such a model was hardly trained.
- `--ignore TOK014`, or a reason under `[ignore]`, silences it.

## Seen in
embeddings-benchmark/mteb#5377 (another tokenizer is loaded, ids change silently), sillsdev/silnlp#1035 (a new vocabulary)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.values.detectors.norms import find_offsets
from ckptcheck.values.detectors.related_tokens import compare_related_tokens, describe_misfit


@rule(
    "TOK014",
    "foreign-tokenizer",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: bool(ckpt.vocabulary_tensors),
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_value_reader()
    fits = {name: fit for name in ckpt.vocabulary_tensors if (fit := compare_related_tokens(ckpt, name)) is not None}
    # EMB008 reports a model in which only one of the two disagrees.
    if (
        not fits or any(fit.fits for fit in fits.values()) or find_offsets(ckpt)
    ):  # VAL015: the rows themselves are shifted
        return
    name, fit = next(iter(fits.items()))
    vocabulary = ckpt.tokenizer.vocabulary
    yield Problem(
        describe_misfit(ckpt, name, fit),
        file=vocabulary.file if vocabulary is not None else "tokenizer_config.json",
        hint="look for a token that was inserted or lost there, by the tokenizer that the model was trained with"
        if fit.shift
        else "take the tokenizer that the model was trained with",
    )
