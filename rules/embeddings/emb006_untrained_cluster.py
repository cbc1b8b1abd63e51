"""Many rows are small and of one size, like rows that were initialised and never trained.

## What it checks
At least four rows of the embedding or the head have a mean magnitude below 20 % of the median row's, sizes that vary no more than
those of rows of one random draw, and a gap of half their size to all other rows. Rows of padding, of placeholders and of used
tokens (EMB005) are left out.

## Why it matters
Nothing happens until you give one of the tokens a meaning: a new template, a tool format, an added token. The token then starts
from noise that is far smaller than its neighbours.

## How to fix
Nothing, as long as the tokens stay unused. Initialise their rows like trained ones before you use them.

## When it can be wrong
- Sound models have such rows: every vocabulary has tokens that its training data never held. The finding says which ones.
- A modality with small embeddings of its own may look so although it is trained.
- It misses rows that are less than five times as small as the others, such as those of BERT's unused tokens, because rare words
  look the same.

## Seen in
OpenRLHF/OpenRLHF#648, QwenLM/Qwen3-VL#1582
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.token_usage import find_required_tokens, format_tokens
from ckptcheck.values.detectors.untrained_rows import find_untrained_rows


@rule("EMB006", "untrained-cluster", severity="info", on="values", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in find_untrained_rows(ckpt):
        rows = matrix.cluster_rows - find_required_tokens(ckpt, matrix.name).keys()
        if rows:
            share = float(matrix.stats.mean_abs[sorted(rows)].mean()) / matrix.stats.median
            yield Problem(
                f"{count(len(rows), 'row looks', 'rows look')} initialised and never trained: of one size, "
                f"{share:.1%} of the median row's ({format_tokens(ckpt, rows)})",
                file=matrix.file(rows),
                key=matrix.name,
                hint="initialise these rows before you give their tokens a meaning",
            )
