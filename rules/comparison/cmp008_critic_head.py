"""A critic has no usable value head, or the value head is a copy of row 0 of the LM head.

## What it checks
With `--critic`:
- At least one side has a value head. An `output_layer.weight` of one row is one too: verl's critics store theirs there.
- A value head is one row with as many numbers as the hidden size, all of them finite.
- The value head is not, byte for byte, the first row of the other side's LM head (or tied embedding), nor of its own
  embedding. If the critic has another dtype, the row is rounded to it first.

## Why it matters
A value head that is stored in the place of the LM head silently takes its row 0 when a GPT checkpoint is loaded: rows may
differ there because of vocabulary padding. The critic then starts from the logits of token 0.

## How to fix
Store the head under a name of its own (`value_head`), and initialize it with zeros or small random numbers.

## When it can be wrong
A head that starts from row 0 and is trained differs after the first step, so this rule no longer finds it; CMP011 finds heads
that were not trained. A head of zeros never counts as a copy. If a critic starts from row 0 on purpose, as in a test, compare
without `--critic`.

## Seen in
alibaba/ROLL's Megatron critic: a head kept in `output_layer` becomes row 0 of the LM head without an error
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.value_heads import (
    describe_unusable_head,
    find_embedding,
    find_lm_head,
    is_first_row_of,
    list_value_heads,
)


@rule("CMP008", "critic-head", severity="error", on="comparison", when=lambda comparison: comparison.critic)
def check(comparison: Comparison) -> Iterator[Problem]:
    heads = list_value_heads(comparison.first, comparison.second)
    if not heads:
        yield Problem(
            "--critic is given, but neither checkpoint has a value head",
            hint="leave --critic out, or save the head with the critic",
        )
    for side, name in heads:
        other = comparison.second if side is comparison.first else comparison.first
        lm_head, own = find_lm_head(other), find_embedding(side)
        hint = "initialize the head with small random numbers, and store it under a name of its own"
        if reason := describe_unusable_head(side, name):
            text = f"the value head is unusable: {reason}"
            hint = "gather the shards of all ranks, or initialize the head again"
        elif lm_head is not None and is_first_row_of(side, name, other, lm_head):
            tied = ", which is tied to its embedding" if "embed" in lm_head else ""
            text = f"the value head is row 0 of the other checkpoint's LM head{tied}, byte for byte"
        elif own is not None and is_first_row_of(side, name, side, own):
            text = "the value head is row 0 of its own checkpoint's embedding, byte for byte"
        else:
            continue
        yield Problem(text, file=side.files.get(name), key=name, hint=hint)
