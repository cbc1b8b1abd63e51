"""An entry of the ignore list matches nothing, and looks like a slip.

## What it checks
An entry that no chosen consumer finds a module for, and that would match if it began with `re:`, if its regex did not have to match
from the first letter, without the prefix of a wrapper (`language_model.`) or its ending (`.linear`), or with a letter changed.
How each consumer matches is held to its real code by this project's tests.

## Why it matters
The module that was meant is not ignored. Where it is unquantized, QNT021 says what happens; where it is quantized, somebody
took care that it should not be, and it is.

## How to fix
Write the entry as the hint says. `ckptcheck scan --fix` writes a list that all chosen consumers read alike.

## When it can be wrong
An entry for another version of the model, or for a part that was cut off, may look like a part that is still there.

## Seen in
sgl-project/sglang#28018, sgl-project/sglang#24927 (entries that end in `.linear`), vllm-project/vllm#54547
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import dead, views


@rule("QNT023", "misspelt-entry", severity="warning", when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for entry in dead(ckpt):
        if entry.meant is not None:
            yield Problem(
                f"{entry.text!r} matches no module for {' or '.join(views(ckpt))}",
                file=entry.file,
                key=entry.key,
                hint=f"did you mean {entry.meant!r}?",
            )
