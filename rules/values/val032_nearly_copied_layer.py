"""A layer is nearly the same as another one, or the mean of two.

## What it checks
Two matrices of each layer are compared with those of every other layer, by 16 rows of each: the largest one of the feed-forward
block and of the attention, as a rule. As vectors of all their numbers, the matrices of two layers are all but orthogonal, because
they were drawn and trained apart. The rule reports two layers whose matrices both have a |cosine| of at least 0.5, where all other
layers have at most 0.3, and fewer than a quarter of the layers have such a neighbour. A layer between two others that are
themselves apart is called their mean. Stacks of fewer than six layers are not judged, nor quantized weights. VAL008 reports layers
that are the same byte for byte.

## Why it matters
A merge that averages the wrong layers, a stage of a pipeline that was written from an older step of its neighbour, noise that was
added to a copy: every name, shape and statistic is right, and one layer of the model is gone.

## How to fix
Convert or merge again. `ckptcheck diff` against the checkpoint that this one was made from shows the layer.

## When it can be wrong
Measured on six trained models that packages ship: at most 0.04 (SmolLM2-135M), 0.06 (all-MiniLM-L6-v2), 0.14 (three BERTs of
rxnfp) and 0.03 where both matrices count. A copy with noise of its own size has 0.7, and so has a mean.

- A model that was made deeper by repeating a few layers and trained on. Where a quarter of the layers are repeated, as in SOLAR,
  the rule is silent.
- `--ignore VAL032`, or a reason under `[ignore]`, silences it.

## Seen in
No public report: what merges and pipelines can do to a layer.
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.near_copied_layers import NearCopy, find_near_copies


@rule("VAL032", "nearly-copied-layer", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    for prefix, copies in find_near_copies(ckpt).items():
        for copy in copies:
            name = f"{prefix}.{copy.layer}.{copy.roles[0]}"
            cosines = " and ".join(f"{cosine:.2f}" for cosine in copy.cosines)
            yield Problem(
                f"{prefix}.{copy.layer} {_describe(copy)}: {copy.roles[0]} and {copy.roles[1]} have a cosine of {cosines} with "
                f"those there, and of at most {copy.usual:.2f} in all other layers",
                file=ckpt.file_of(name),
                key=name,
                hint="convert or merge again; ckptcheck diff against the checkpoint that this one was made from shows the layer",
            )
    ckpt.require_values()


def _describe(copy: NearCopy) -> str:
    if len(copy.others) > 1:
        return f"lies between layers {copy.others[0]} and {copy.others[1]}, as their mean does"
    return f"is nearly the same as layer {copy.others[0]}"
