"""An entry of the ignore list matches nothing, and looks misspelt.

## What it checks
No entry without a matching module in any chosen consumer would match with one of these changes:
- `re:` at its beginning, or a regex that need not match from the first letter;
- without the prefix of a wrapper (`language_model.`), or without its ending (`.linear`);
- one letter changed.

The tests of this project compare how each consumer matches with its real code.

## Why it matters
The intended module is not ignored. If it is stored unquantized, QNT021 says what happens. If it is stored quantized, it is
quantized although somebody wanted to prevent that.

## How to fix
Write the entry as the hint says. `ckptcheck scan --fix` writes a list that all chosen consumers read in the same way.

## When it can be wrong
An entry for another version of the model, or for a part that was removed, may resemble a part that is still there.

## Seen in
sgl-project/sglang#28018, sgl-project/sglang#24927 (entries that end in `.linear`), vllm-project/vllm#54547
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_unused_entries


@rule(
    "QNT023",
    "misspelt-entry",
    severity="warning",
    when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for entry in find_unused_entries(ckpt):
        if entry.suggestion is not None:
            yield Problem(
                f"{entry.text!r} matches no module for {' or '.join(evaluate_checkpoint(ckpt))}",
                file=entry.file,
                key=entry.key,
                hint=f"did you mean {entry.suggestion!r}?",
            )
