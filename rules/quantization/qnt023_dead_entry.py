"""An entry of the ignore list matches nothing.

## What it checks
Every entry matches at least one module for one of the chosen consumers. It is a warning if the entry looks misspelt: with one of
these changes it would match a module that is stored quantized, or one that is built quantized and stored plain:
- `re:` at its beginning, or a regex that need not match from the first letter;
- without the prefix of a wrapper (`language_model.`, or `model.` of transformers' own model), or without its ending (`.linear`);
- one letter changed;
- another name of a part that sees or hears (`re:visual.*` for `vision_tower`), or of the state space models (`re:mamba.*` for
  NemotronH's `mixer`), where that part is stored quantized.

An entry that matches a parameter as slime reads the list, such as `re:.*mlp.gate.weight`, is no dead one, nor is one for a module
that the index places in a missing file.

Where the modules of an architecture are guessed, it reports only such entries.

The tests of this project compare how each consumer matches with its real code.

## Why it matters
The module that a misspelt entry means is not ignored. If it is stored unquantized, QNT020 says what happens. If it is stored
quantized, it is quantized although somebody wanted to prevent that. Other dead entries do nothing now: lists are copied from
model to model, and unused entries hide missing ones.

## How to fix
Write the entry as the hint says, or remove it, unless a trainer reads the list too: `ckptcheck scan --consumers sglang,slime` shows
what it would pack without the entry. `ckptcheck scan --fix` writes a list that all chosen consumers read in the same
way.

## When it can be wrong
A list for a family of models is right to name modules that only some of them have, such as a vision tower or a router. An entry
for another version of the model, or for a part that was removed, may resemble a part that is still there.

## Seen in
sgl-project/sglang#28018, sgl-project/sglang#24927 (entries that end in `.linear`), vllm-project/vllm#54547,
vllm-project/llm-compressor (one list for several models), vllm-project/llm-compressor#2597
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_unused_entries, matches_packed_module


@rule(
    "QNT023", "dead-entry", severity="info", when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt))
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for entry, meant in find_unused_entries(ckpt):
        if meant is not None:
            yield Problem(
                f"{entry.text!r} matches no module for {' or '.join(evaluate_checkpoint(ckpt))}",
                file=entry.file,
                key=entry.key,
                severity="warning",
                hint=f"the tool quantized what it should leave out: quantize again with {meant!r}, or remove the entry"
                if matches_packed_module(ckpt, meant)
                else f"did you mean {meant!r}?",
            )
        else:
            yield Problem(f"{entry.text!r} matches no module of this checkpoint", file=entry.file, key=entry.key)
