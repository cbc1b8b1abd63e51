"""The weights around a value head changed, and the head did not.

## What it checks
Both sides have a value, reward or classification head of the same dtype. The two heads agree bit for bit, though most of the
matrices beside them differ, and for no cause that is known: so a training run changed them.

## Why it matters
The head is the one part of a critic that starts from random numbers. One that never moves was left out of the optimizer, is
not among `modules_to_save` of an adapter, or the copy that was saved is not the one that was trained. Whoever loads the
checkpoint scores with random numbers, and nothing says so.

## How to fix
See that the head is among the optimizer's parameters and has a gradient; with PEFT name it in `modules_to_save`. If it was
trained and not saved, save the module that was trained.

## When it can be wrong
The head was frozen on purpose, or one backbone was given another's head. Changes so small that bf16 rounds them away leave a
head as it was; but then it was not trained either. It is skipped where a tolerance is given.

## Seen in
huggingface/transformers#26160 (another module than the trained one was saved), huggingface/peft#577 (the head keeps its random
start), unslothai/unsloth-zoo#1087 (merging left a trained head out)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.comparison.comparison import Comparison
from ckptcheck.comparison.critic import compared_heads, moved_by_training


@rule(
    "CMP011",
    "untrained-value-head",
    severity="warning",
    on="comparison",
    when=lambda seen: any(how.first == how.second for _, how in compared_heads(seen)),
)
def check(seen: Comparison) -> Iterator[Problem]:
    if seen.terms.rtol or seen.terms.atol:
        raise Skip("with a tolerance a head that moved a little counts as equal")
    different = {pair.name for pair, _, _ in seen.findings.different}
    still = [pair for pair, how in compared_heads(seen) if how.first == how.second and pair.name not in different]
    if not still:
        return
    moved, matrices = moved_by_training(seen)
    if moved * 2 <= matrices:
        return
    for pair in still:
        yield Problem(
            f"the head is the same in both checkpoints, bit for bit, though {moved:,} of {matrices:,} other matrices changed: "
            "it was not trained, or what was trained was not saved",
            file=seen.second.files.get(pair.names[1]),
            key=pair.name,
            hint="see that the optimizer has the head, and that the trained copy is the one that is saved",
        )
