"""The two sides hold the same tokens in other places, other tokens, or other position ids.

## What it checks
- ckptcheck matches the tokens of both dumps by their ids, which it takes from the input of the embedding; in dumps without ids, by
  the output of the embedding. It finds sequences in another order, on other ranks, with padding, or with further tokens after them
  (a warning), and compares each token with its partner.
- Every token of one dump has a partner in the other dump, except padding and further tokens at the end.
- Partners have the same position ids in the rotary embedding or the layers; in vision-language models for time, height and width.
  A shift of a whole sequence is no difference, because rotary embeddings depend on distances alone.

## Why it matters
- msProbe's guide compares rank by rank and row by row. Compared like that, sequences in other places differ from the first module
  on, and the weights seem to be wrong.
- If a token differs, it and every later token of its sequence have another output at every module. A comparison of them says
  nothing about weights, so ckptcheck compares no such sequence.
- If position ids differ, attention differs from the first layer on, while every weight is right. In a vision-language model the
  ids of an image's tokens depend on the size of its grid, and each side computes them itself.

## How to fix
- Nothing, to read this report. For other tools: `trainer.balance_batch=False`, `use_remove_padding=True`, `PROMPTS_ONLY=1`, and no
  split batches (`ckptcheck preflight` checks them).
- Dump the same prompt on both sides. A missing first token (BOS) or another chat template makes the prompts differ: compare the ids
  first.
- Padding on the left: count positions from the first real token on.
- Packed sequences: let positions start at 0 in each.
- Vision-language models (multimodal rotary embedding): give both sides the same grid of each image; where the response is cut off,
  cut the last axis of `position_ids` (`[:, :, :-response_length]`).

## When it can be wrong
- ckptcheck may pair two tokens of one id with other neighbours, if the dumps cut sequences into pieces of a few tokens.
- A single padding token at the beginning looks like a BOS token.
- A model without rotary embeddings that ignores its position ids.

## Seen in
the verl/msProbe guide to consistency dumps ("ensure that the data collected corresponds one-to-one on each rank", "ensure that the
input shapes for training and inference are the same", `qwen2vl mrope`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization, RankLayout


@rule(
    "LOC007", "different-inputs", severity="error", on="localization", when=lambda evidence: evidence.layout is not None
)
def check(evidence: Localization) -> Iterator[Problem]:
    layout = evidence.layout
    assert layout is not None
    yield from _find_moves(layout)
    yield from _find_other_tokens(layout)
    yield from _find_other_positions(layout)


def _find_moves(layout: RankLayout) -> Iterator[Problem]:
    for move in layout.moves:
        yield Problem(
            f"{move}; ckptcheck compared each token with itself",
            hint="for tools that compare row by row, dump with balance_batch off, no padding, and prompts only",
            severity="warning",
        )


def _find_other_tokens(layout: RankLayout) -> Iterator[Problem]:
    if layout.different:
        yield Problem(
            f"the sides computed different tokens: {layout.different}",
            hint="dump the same prompt, and only the prompt, on both sides",
        )


def _find_other_positions(layout: RankLayout) -> Iterator[Problem]:
    if layout.positions:
        yield Problem(layout.positions, hint="compare how each side counts positions, before any weight")
