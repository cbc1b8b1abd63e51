"""The reward or value head has the wrong shape.

## What it checks
`score.weight` is `[num_labels, hidden_size]`, with `num_labels` as the config gives it (directly or as the length of
`id2label`; transformers assumes 2 without either); a value head (`value_head`, `v_head`) is `[1, hidden_size]`.

## Why it matters
transformers stops with a size mismatch. `[hidden, 1]` is a transposed head: a Linear stores [outputs, inputs]. `[8, hidden/8]`
is a head that was saved in its tensor-parallel layout: the right number of elements in the wrong positions. `[1, hidden/8]` is
what one of eight ranks holds.

## How to fix
Transpose, gather or reshape the head; set `num_labels` to 1 for a reward model.

## When it can be wrong
A value head with one output for each of several objectives, or one that reads more than the last hidden state, has another
shape by design and fires under the name `value_head` or `v_head`: use `--ignore HEAD003`, or rename it. Heads of several
layers (`value_head.0.weight`) and classifiers under other names are not checked.

## Seen in
Open-Reasoner-Zero#63
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import HIDDEN
from ckptcheck.checkpoint.heads import VALUE_HEADS, count_labels, explain_head_shape, is_scorer, score_head_modules
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.text.formatting import format_shape


@rule(
    "HEAD003",
    "score-head-shape",
    severity="error",
    on="config",
    when=lambda ckpt: bool(ckpt.components.score_head_tensors),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    hidden = ckpt.config.integer(*HIDDEN)
    if hidden is None or (is_scorer(ckpt.config) and not score_head_modules(ckpt.config.architecture)):
        return
    for name in ckpt.components.score_head_tensors:
        found = ckpt.tensors[name].shape
        if name.endswith(VALUE_HEADS):
            rows, why, hint = 1, "a value head needs", "save the head of the trained critic, with one output"
        elif name == "score.weight" and is_scorer(ckpt.config):
            rows, hint = count_labels(ckpt.config), "set num_labels (or id2label) to what the head has"
            why = f"{rows} label{' needs' if rows == 1 else 's need'}"
        else:
            continue
        if found == (rows, hidden) or 0 in found:
            continue
        layout = explain_head_shape(found, (rows, hidden))
        yield Problem(
            f"the head has the shape {format_shape(found)}; {why} {format_shape((rows, hidden))}"
            + (f"; {layout.text}" if layout else ""),
            file=ckpt.tensor_to_file[name],
            key=name,
            hint=layout.hint if layout else hint,
        )
