"""A token that the model will meet has an embedding that was never trained.

## What it checks
Rows of the token embedding, and of an output head of its own, that are near zero (every element below
`--near-zero-threshold`, 1e-10), one number throughout (standard deviation below `--identical-threshold`, 1e-8), or far
below the others (mean magnitude under 2 % of the median row's). Their token is used when the chat template, or the one for
tools, emits it, when it ends a turn, or when a config names it as bos or eos, which tells without a tokenizer too, or as the
token with which a decoder begins.

Left out is the zero input row of config.json's pad_token_id where the output is another matrix, or nothing is trained yet: torch
starts it at zero and gives it no gradient, also when padding is eos (EMB003).

## Why it matters
The first step of RL or SFT sends a gradient through the row: with a row near zero the norm that follows divides by nearly
nothing, gradients reach 1e18 or Inf, and clipping throws the whole step away. In generation the row is noise at every turn.

## How to fix
Initialise these rows like trained ones (the mean of the others, with their spread) before training, or use a chat template
whose tokens the base model knows.

## When it can be wrong
A token that the template mentions and your prompts never hold does no harm, nor does a declared bos that no tokenizer adds.
The head's row of a token that stands only in prompts may stay untrained: no loss asks for it. Neither is seen from the files;
`[ignore]` in the settings is for them. Rows of images and sounds, which an encoder's output replaces, are left out where the
config names their tokens (`image_token_id`); a placeholder that no config names is taken for a used token.

## Seen in
NVIDIA-NeMo/RL#2671, NVIDIA-NeMo/RL#1984, unslothai/unsloth#915, NVIDIA-NeMo/Automodel#3136, axolotl-ai-cloud/axolotl#1771
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count
from ckptcheck.values.untrained import untrained
from ckptcheck.values.uses import listed


@rule("EMB001", "untrained-used-token", severity="error", on="values", when=lambda ckpt: bool(ckpt.vocabularies))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for matrix in untrained(ckpt):
        used = matrix.used
        if used:
            first = min(used)
            yield Problem(
                f"{count(len(used), 'used token has', 'used tokens have')} an untrained row: {listed(ckpt, used)}; "
                f"token {first} is {matrix.rows[first]}, and {used[first]} ({matrix.summary})",
                file=matrix.file(used),
                key=matrix.name,
                hint="initialise these rows like trained ones before training with them",
            )
    for matrix in untrained(ckpt):
        matrix.require_ids()
