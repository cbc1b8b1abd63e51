"""The reward or value head has another shape than it must have.

## What it checks
`score.weight` is `[num_labels, hidden_size]`, with `num_labels` as the config gives it (by itself or as the length of
`id2label`; transformers takes 2 where neither is there); a value head (`value_head`, `v_head`) is `[1, hidden_size]`.

## Why it matters
transformers stops with a size mismatch. `[8, hidden/8]` is a head that was saved in its tensor-parallel layout: as
many elements, in the wrong places.

## How to fix
Gather or reshape the head; set `num_labels` to 1 for a reward model.

## When it can be wrong
A value head with one output for each of several objectives, or one that reads more than the last hidden state, is
wider by design: by the name `value_head` or `v_head` it fires. `--ignore HEAD003`, or call it otherwise. Heads of
several layers (`value_head.0.weight`) and classifiers under other names are not measured.

## Seen in
Open-Reasoner-Zero#63
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import HIDDEN
from ckptcheck.checkpoint.heads import VALUE_HEADS, is_scorer, labels
from ckptcheck.phrase import shape


@rule(
    "HEAD003",
    "score-head-shape",
    severity="error",
    when=lambda ckpt: ckpt.config is not None and bool(ckpt.anatomy.scores),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    hidden = ckpt.config.integer(*HIDDEN)
    if hidden is None:
        return
    for name in ckpt.anatomy.scores:
        found = ckpt.tensors[name].shape
        if name.endswith(VALUE_HEADS):
            rows, why = 1, "a value head needs"
        elif name == "score.weight" and is_scorer(ckpt.config):
            rows, why = (
                labels(ckpt.config),
                f"{labels(ckpt.config)} label{'' if labels(ckpt.config) == 1 else 's'} need",
            )
        else:
            continue
        if found == (rows, hidden) or 0 in found:
            continue
        layout = (
            "; it was saved in a tensor-parallel layout" if prod(found) == rows * hidden and len(found) == 2 else ""
        )
        yield Problem(
            f"the head has the shape {shape(found)}; {why} {shape((rows, hidden))}{layout}",
            file=ckpt.holders[name],
            key=name,
            hint="gather or reshape the head" if layout else "set num_labels (or id2label) to what the head has",
        )
