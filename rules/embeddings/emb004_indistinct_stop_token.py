"""The token that ends generation has the same row as another token.

## What it checks
The row of eos_token_id (of generation_config.json, else config.json, else the tokenizer) in the matrix that scores the next
token: the output head, or the embedding where it is tied. No other row holds the very same bytes. Of several such ids one
that is distinct is enough. Rows that are zero, or one number throughout, are EMB001's. Not
looked for in a Megatron run.

## Why it matters
Equal rows give equal logits at every step. vLLM, SGLang and transformers stop at the one id only, so the model stops half
the time, or one time in a hundred, or never: greedy decoding takes the lowest id. Rollouts run to the length limit, and
reserved tokens come out in place of the end. Rows are equal when nothing was trained: many reserved tokens start alike, and
what moves them without their ever standing in a text moves them all alike.

## How to fix
Train the row (SFT on whole conversations, the head not frozen), or name the token that the model really ends with.

## When it can be wrong
In a checkpoint that is about to be trained, whose stop token was chosen or copied from another a moment ago: it is true, and
meant. Ignore the rule until the first save.

## Seen in
unslothai/unsloth#915 (a base model under a chat template: reserved tokens come out where `<|eot_id|>` should)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.copies import indistinct_stops
from ckptcheck.values.uses import listed, writes_with


@rule(
    "EMB004",
    "indistinct-stop-token",
    severity="error",
    when=lambda ckpt: ckpt.tokenizer is not None and writes_with(ckpt) is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    shared = indistinct_stops(ckpt)
    if not shared:
        return
    name = writes_with(ckpt)
    assert name is not None
    others = sorted({other for found in shared.values() for other in found})
    yield Problem(
        f"generation stops at {listed(ckpt, shared)}, whose row has the same bytes as "
        f"{count(len(others), 'other row', 'other rows')}: {listed(ckpt, others)}; they always score alike",
        file=ckpt.holders[name],
        key=name,
        hint="train the row, or set eos_token_id to the token that the model ends with",
    )
