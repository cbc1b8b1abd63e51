"""Part of the embedding or the head was drawn anew from an initialiser.

## What it checks
At least a tenth of the rows that have a token, and no more than nine tenths, look drawn, in one range or spread over the matrix:

- A row that was drawn is independent of all others: neither is its mean squared cosine with them more than 1.2 / columns, nor does
  it lie along the direction that trained rows share (within three standard deviations).
- Their sizes vary no more than twice as much as those of one draw.

| share that looks drawn | as it is | a half drawn anew, in one range | at random | a quarter |
|---|---|---|---|---|
| SmolLM2-135M-Instruct | 0.000 | 0.50 | 0.46 and 0.48 | 0.24 and 0.25 |
| all-MiniLM-L6-v2 | 0.004 | 0.48 and 0.49 | 0.45 and 0.51 | 0.24 and 0.25 |
| heads of a small Llama after 100 and 300 steps of training | 0.000 | 0.44 to 0.47 | 0.45 to 0.50 | 0.22 and 0.23 |

The spread of what was drawn makes little difference (0.02, and that of the trained rows). After 100 steps a third of the rows of
this small Llama's embedding still look drawn, of different sizes: that is not reported. It reads 512 rows, and no matrix with
fewer than 1,024 rows or 64 columns. EMB006 reports small clusters.

## Why it matters
A resize, a merge of vocabulary-parallel ranks or a loader that misses one rank's part leaves random rows. Half of the text is noise
to the model, or half of the tokens are scored by noise; names, shapes and sizes are right.

## How to fix
Take these rows from the checkpoint that this one was made from. Train them first if they are new on purpose.

## When it can be wrong
- The vocabulary was just extended by a tenth, and training comes next.
- A model with separate input and output, trained on little text, may never have met a tenth of its tokens. Their rows are fresh.
- The embedding is random by design and frozen in part.
- It misses new rows that start at the mean of the others (EMB005), and a few rows.
- Whether a whole embedding was multiplied by one number (the square root of the hidden size), only another
  checkpoint shows: `ckptcheck diff` or `verify`.
- `--ignore EMB009`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#5844 (experts as they were allocated), huggingface/transformers#34759
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.fresh_rows import find_fresh_rows


@rule("EMB009", "fresh-rows", severity="warning", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_value_reader()
    require_sampling(ckpt)
    for name in ckpt.vocabulary_tensors:
        if (fresh := find_fresh_rows(ckpt, name)) is None:
            continue
        where = "spread over the matrix" if fresh.span is None else f"about rows {fresh.span[0]:,}-{fresh.span[1]:,}"
        yield Problem(
            f"about {fresh.share:.0%} of the rows look freshly initialised ({where}): they are independent of all others and of "
            f"one size (root mean square {fresh.size:.2g}); the other rows are trained ({fresh.trained_size:.2g})",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="take these rows from the checkpoint that this one was made from, or train them first",
        )
