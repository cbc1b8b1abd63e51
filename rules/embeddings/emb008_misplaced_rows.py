"""The rows of the head belong to other tokens than those of the embedding.

## What it checks
The model has a separate output head. By TOK014's comparison of related tokens (a word, after a space, with a capital letter, in the
plural), one of the two matrices fits the tokenizer and the other does not: its rows are shifted, from some id on or all of
them, or they belong to other tokens.

TOK014's page has the measured margins. The heads of a small untied Llama have a mean cosine of 0.14 after 100 steps of training
and 0.24 after 300, within 0.03 of other pairs of nearby ids under other tokenizers. The rule does not compare a token's row in the
embedding with its row in the head: their cosine is 0.01 in this model.

## Why it matters
The model reads the right words and scores the wrong ones, or the other way round. Loss and reward look like those of an untrained
model, and no shape, size or name shows why. A resize of one of the two matrices, or a merge with another vocabulary, leaves this.

## How to fix
Take the matrix from the checkpoint that this one was made from.

## When it can be wrong
- A head that scores another vocabulary on purpose, such as that of a draft model with its own order of tokens. Drafts (EAGLE) and
  heads with another number of rows are left out.
- It misses what TOK014 misses.
- `--ignore EMB008`, or a reason under `[ignore]`, silences it.

## Seen in
sillsdev/silnlp#1035 (a checkpoint resized to another vocabulary)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.values.detectors.related_tokens import compare_related_tokens, describe_misfit


@rule(
    "EMB008",
    "misplaced-rows",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: len(ckpt.vocabulary_tensors) > 1 and not ckpt.components.is_draft,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_value_reader()
    names = list(ckpt.vocabulary_tensors)
    if len({ckpt.tensors[name].shape[0] for name in names}) > 1:
        return
    fits = {name: fit for name in names if (fit := compare_related_tokens(ckpt, name)) is not None}
    fitting = [name for name, fit in fits.items() if fit.fits]
    for name, fit in fits.items():
        if fitting and not fit.fits:
            yield Problem(
                f"{describe_misfit(ckpt, name, fit)}; the rows of {fitting[0]} fit the tokenizer",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="take this matrix from the checkpoint that this one was made from",
            )
