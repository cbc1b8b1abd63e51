"""Norms of a shard have the signs of a matrix: its data are shifted.

## What it checks
The weights of a norm have one sign, but for a few. It is said where at least four norms of a shard, in three layers or more, are
negative in 35 to 65 % of their weights, where three of four norms from the first of them on are so, and where of the same
norms in other layers at least a third has no more than 1 % of negative weights. Norms of fewer than 64 weights are left out, and
models whose norms are centred at zero (VAL013 says which), where any sign is sound. Nobody looks for that on the Hub.

## Why it matters
A writer that is off by some bytes, a page that was written twice or a header that belongs to other data leave every tensor with
the numbers of its neighbour. Matrices still look like matrices; a norm shows it. The model answers with nonsense.

## How to fix
Compare the file's hash with the original's, and fetch or write it again.

## When it can be wrong
A model whose norms are positive in most layers and have both signs in three neighbouring ones. The first norm of a model may
have both signs by itself (SmolLM2's has), which is not enough. Data that are shifted by less than a norm's length leave its
other weights as they are, and a model in one file whose norms are all hit has no sound ones to compare with: neither is
seen. `--ignore VAL015`, or a reason under `[ignore]`, silences it.

## Seen in
ggml-org/llama.cpp#18291 (a converter that took the data to begin some bytes later than they do)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.norms import misplaced_norms


@rule("VAL015", "shifted-data", severity="error", on="values", when=lambda ckpt: bool(ckpt.anatomy.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.source.local is None:
        raise Skip("not looked for on the Hub")
    for shard, names in misplaced_norms(ckpt).items():
        yield Problem(
            f"{count(len(names), 'norm is', 'norms are')} negative in about half of their weights, and the same norms of "
            f"other layers are not, as where the data are shifted: {few(names)}",
            file=shard,
            key=names[0],
            hint="compare the file's hash with the original's, and fetch or write it again",
        )
    ckpt.require_values()
