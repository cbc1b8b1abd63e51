"""Many rows are small and alike, as rows are that were drawn and never trained.

## What it checks
At least four rows of the embedding or the head whose mean magnitude is below 20 % of the median row's, which vary no more than
rows of one random draw do, with a gap of half their size to all other rows. Rows of padding, of placeholders and of used tokens
(EMB005) are left out.

## Why it matters
Nothing happens until somebody gives one of the tokens a meaning: a new template, a tool format, an added token. It then starts
from noise, far smaller than its neighbours.

## How to fix
Nothing, as long as the tokens stay unused. Initialise their rows like trained ones before you use them.

## When it can be wrong
It is true of sound models: every vocabulary has tokens that its training data never held, and this says which ones. Trained
rows may look so where a modality has small embeddings of its own. Rows that are less than five times as small as the others,
such as those of BERT's unused tokens, are not told from rare words.

## Seen in
OpenRLHF/OpenRLHF#648, QwenLM/Qwen3-VL#1582
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.untrained import untrained
from ckptcheck.values.uses import listed, needed


@rule("EMB006", "untrained-cluster", severity="info", on="values", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        rows = matrix.clustered - needed(ckpt, matrix.name).keys()
        if rows:
            share = float(matrix.stats.mean_abs[sorted(rows)].mean()) / matrix.stats.median
            yield Problem(
                f"{count(len(rows), 'row looks', 'rows look')} drawn and never trained, {share:.1%} the size of the median row "
                f"and alike: {listed(ckpt, rows)}",
                file=matrix.file(rows),
                key=matrix.name,
                hint="initialise these rows before you give their tokens a meaning",
            )
