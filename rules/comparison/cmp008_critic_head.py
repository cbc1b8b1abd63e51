"""The value head of a critic is not one: it is missing, or a row of the language model's head.

## What it checks
With `--critic`: at least one side has a value head (an `output_layer.weight` of one row is one too, as verl's critics have it);
and the value head is not, byte for byte, the first row of the other side's LM head, or of its embedding where that is tied,
and not that of its own embedding.
Where the critic has another dtype the row is rounded to it first. A value head is one row of as many numbers as the model is
wide, all of them finite.

## Why it matters
A head that lives in the place of the LM head takes row 0 of it when a GPT checkpoint is loaded, without an error, since rows
may differ there for the padding of the vocabulary. The critic then starts from the logits of token 0.

## How to fix
Give the head a name of its own (`value_head`), and start it from zeros or small random numbers.

## When it can be wrong
A head that starts from row 0 and is trained has other bytes after the first step, so this rule no longer sees where
it came from; CMP011 looks at heads that were not trained. A head of zeros is never taken for a copy. Whoever starts a
critic from row 0 on purpose, as a test for example, compares without `--critic`.

## Seen in
alibaba/ROLL's Megatron critic: a head kept in `output_layer` becomes row 0 of the LM head without an error
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.critic import embedding, heads, is_first_row, lm_head, unfit


@rule("CMP008", "critic-head", severity="error", on="comparison", when=lambda seen: seen.critic)
def check(seen: Comparison) -> Iterator[Problem]:
    found = heads(seen)
    if not found:
        yield Problem(
            "--critic was given, and neither checkpoint has a value head",
            hint="leave --critic out, or save the head with the critic",
        )
    for side, name in found:
        if why := unfit(side, name):
            yield Problem(
                f"the value head is none: {why}",
                file=side.files.get(name),
                key=name,
                hint="gather the shards of all ranks, or start the head anew",
            )
            continue
        other = seen.second if side is seen.first else seen.first
        stored = lm_head(other)
        if stored is not None and is_first_row(side, name, other, stored):
            tied = ", which is tied to its embedding" if "embed" in stored else ""
            yield Problem(
                f"the value head is row 0 of the other checkpoint's LM head{tied}, byte for byte",
                file=side.files.get(name),
                key=name,
                hint="start the head from small random numbers, and keep it under a name of its own",
            )
        elif (own := embedding(side)) is not None and is_first_row(side, name, side, own):
            yield Problem(
                "the value head is row 0 of its own checkpoint's embedding, byte for byte",
                file=side.files.get(name),
                key=name,
                hint="start the head from small random numbers, and keep it under a name of its own",
            )
