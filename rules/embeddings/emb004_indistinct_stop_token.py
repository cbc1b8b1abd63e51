"""The token that ends generation has the same row as another token.

## What it checks
- The row of eos_token_id in the matrix that scores the next token (the output head, or the tied embedding) differs from every
  other row. The id is that of generation_config.json, else of config.json, else of the tokenizer.
- If there are several such ids, one with a row of its own is enough.
- EMB001 reports rows that are zero or one number throughout. Megatron runs are left out.

## Why it matters
Equal rows get equal logits at every step. vLLM, SGLang and transformers stop at the one id only, so the model stops half the time,
or one time in a hundred, or never: greedy decoding takes the lowest id. Rollouts run to the length limit, and reserved tokens come
out instead of the end. Rows are equal if they were never trained: many reserved tokens start with the same row, and what
moves them although no text contains them moves all of them alike.

## How to fix
Train the row (SFT on whole conversations, with the head not frozen), or name the token that the model really ends with.

## When it can be wrong
The stop token of a checkpoint that is about to be trained may have just been chosen, or copied from another. Ignore the rule until
the first save.

## Seen in
unslothai/unsloth#915 (a base model under a chat template: reserved tokens come out where `<|eot_id|>` should)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import TokenizedCheckpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.similar_rows import find_indistinct_stops
from ckptcheck.values.detectors.token_usage import find_output_matrix, format_tokens


@rule(
    "EMB004",
    "indistinct-stop-token",
    severity="error",
    on="tokenizer",
    when=lambda ckpt: find_output_matrix(ckpt) is not None,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    shared = find_indistinct_stops(ckpt)
    if not shared:
        return
    if (name := find_output_matrix(ckpt)) is None:
        return
    others = sorted({other for rows in shared.values() for other in rows})
    yield Problem(
        f"generation stops at {format_tokens(ckpt, shared)}, whose row has the same bytes as "
        f"{count(len(others), 'other row', 'other rows')}: {format_tokens(ckpt, others)}; "
        "these tokens always get the same logit, so generation may not stop",
        file=ckpt.tensor_to_file[name],
        key=name,
        hint="train the row, or set eos_token_id to the token that the model ends with",
    )
