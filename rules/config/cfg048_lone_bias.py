"""The bias of a module is stored, and not its weight.

## What it checks
Every tensor `NAME.bias` has company: a weight, or what stands for one (`qweight`, `weight_packed`, a part of a parametrization). It
looks at modules beside the layers, such as heads and poolers; CFG005 and CFG045 compare the layers. Left out are biases as long
as the vocabulary, whose weight may be the embedding, and partial checkpoints.

## Why it matters
A linear layer, a convolution and a norm have a bias only beside a weight. The weight was lost: transformers starts it from random
numbers, says so in one line of a log, and adds the trained bias.

## How to fix
Export again. Where the weight is shared with another module, name that in the class (`_tied_weights_keys`).

## When it can be wrong
A module of your own may have nothing but a parameter named `bias`: `--ignore CFG048`. Of the 157 released models whose structures
the tests hold, none has; four have a bias whose weight is the embedding.

## Seen in
Made by hand: `classifier.weight` taken from classifiers of transformers
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.parameters_table import ParametersTable
from ckptcheck.text.formatting import join_truncated


@rule(
    "CFG048",
    "lone-bias",
    severity="error",
    when=lambda ckpt: ckpt.config is not None and not (ckpt.is_partial or ckpt.is_adapter or ckpt.is_mlx),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    table = ParametersTable.of(ckpt.config)
    by_file: dict[str, list[str]] = {}
    for name in _list_lone_biases(ckpt):
        # CFG045 reports what every model of the class has.
        if table is None or f"{name.removesuffix('bias')}weight" not in table.needs:
            by_file.setdefault(ckpt.tensor_to_file[name], []).append(name)
    for file, names in by_file.items():
        subject = "its weight is" if len(names) == 1 else f"the weights of {join_truncated(names)} are"
        yield Problem(
            f"{subject} not stored"
            + (
                ": transformers starts it from random numbers"
                if table is not None
                else ", and common modules have a bias only beside a weight"
            ),
            file=file,
            key=names[0],
            severity="error" if table is not None else "warning",
            hint="export again",
        )


def _list_lone_biases(ckpt: Checkpoint) -> list[str]:
    """Return the biases beside the layers that are the only tensor of their module, and as long as no vocabulary."""
    lengths = {ckpt.tensors[name].shape[:1] for parts in ckpt.vocabulary_tensors.values() for name in parts}
    vocabulary = ckpt.config.integer("vocab_size") if ckpt.config is not None else None
    companions = {
        name[: place + 1]
        for name in ckpt.layout.outside
        if not name.endswith(".bias")
        for place, letter in enumerate(name)
        if letter == "."
    }
    return [
        name
        for name in ckpt.layout.outside
        if name.endswith(".bias")
        and name.removesuffix("bias") not in companions
        and len(shape := ckpt.tensors[name].shape) == 1
        and shape not in lengths | {(vocabulary,)}
    ]
