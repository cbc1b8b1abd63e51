"""A token that the model will meet has an embedding row that was never trained.

## What it checks
No used token has an untrained row in the token embedding, or in a separate output head.

A row is untrained if one of these holds:
- It is near zero: every element is below `--set near-zero-threshold` (1e-10) in magnitude.
- It is one number throughout: its standard deviation is below `--set identical-threshold` (1e-8).
- It is far below the others: its mean magnitude is under 2 % of the median row's.

A token is used if the chat template, or the one for tools, emits it, if it ends a turn, if a config names it as bos or eos (known
without a tokenizer too), or if a decoder begins with it.

The zero embedding row of config.json's pad_token_id is left out if the output is a separate matrix, or if nothing is trained
yet: torch starts it at zero and gives it no gradient, also if padding is eos too (EMB003).

## Why it matters
The first step of RL or SFT sends a gradient through the row. If the row is near zero, the norm that follows divides by almost
nothing, gradients reach 1e18 or Inf, and clipping discards the whole step. In generation the row is noise at every turn.

## How to fix
Initialise these rows like trained ones (the mean of the others, with their spread) before training, or use a chat template
whose tokens the base model knows.

## When it can be wrong
- A token that the template mentions and your prompts never contain does no harm, nor does a declared bos that no tokenizer adds.
- The output row of a token that appears only in prompts may stay untrained: no loss asks for it. The files show neither; list
  such cases under `[ignore]` in the settings.
- Placeholders of images and sounds, which an encoder's output replaces, are left out if the config names their tokens
  (`image_token_id`). A placeholder that no config names counts as a used token.

## Seen in
NVIDIA-NeMo/RL#2671, NVIDIA-NeMo/RL#1984, unslothai/unsloth#915, NVIDIA-NeMo/Automodel#3136, axolotl-ai-cloud/axolotl#1771
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.token_usage import format_tokens
from ckptcheck.values.detectors.untrained_rows import find_untrained_rows


@rule("EMB001", "untrained-used-token", severity="error", on="values", when=lambda ckpt: bool(ckpt.vocabulary_tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in find_untrained_rows(ckpt):
        used = matrix.used_rows
        if used:
            first = min(used)
            yield Problem(
                f"{count(len(used), 'used token has', 'used tokens have')} an untrained row: {format_tokens(ckpt, used)}; "
                f"token {first} is used because {used[first]}, and its row is {matrix.rows[first]} ({matrix.summary})",
                file=matrix.file(used),
                key=matrix.name,
                hint="take these rows from the model this one was made from, if they are trained there; else train them (of an "
                "adapter with modules_to_save or trainable_token_indices)",
            )
    for matrix in find_untrained_rows(ckpt):
        matrix.require_token_ids()
