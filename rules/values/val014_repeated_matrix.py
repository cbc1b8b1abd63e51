"""A matrix of a layer is another one again, byte for byte.

## What it checks
No matrix of a layer has the bytes of the same matrix in another layer, or of another matrix of equal shape; nor has an
expert those of an expert in another layer. Left out are matrices of one number, identities and such of zeros almost
throughout, scales, norms and biases, layers that are copies as a whole (VAL008), experts within a layer (VAL009), parts of
one weight of a Megatron run (MEG028), blocks that are shared by name, and models whose config says that layers share weights
(or keys and values: those, then). Layers of multi-token prediction are not looked at.

## Why it matters
A conversion that takes one name for another writes layer 11's `o_proj` into layer 12, the queries' weights for the keys, or
the gate's for the up projection. Names, shapes and statistics are right, every engine loads it, and one part of the model
computes another's function: its texts are a little worse, or nonsense.

## How to fix
Convert again, and compare the names that this finding gives with those of the source.

## When it can be wrong
Layers that were copied to make a model deeper, of which only some matrices were trained after (adapters on attention alone);
attention across towers that begins as a copy of self-attention; models that share matrices between layers by design and
store each, without a setting that says so. A copy in which one byte differs, a transposed one, and packed integers are not
seen. `--ignore VAL014`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (one tensor written again and again), NVIDIA-NeMo/Megatron-Bridge#1984 (right
shapes, wrong values in some parameters)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.duplicates import equal_matrices, sentences


@rule("VAL014", "repeated-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.anatomy.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.source.local is None:
        raise Skip("not looked for on the Hub")
    copies = equal_matrices(ckpt)
    if copies:
        said = sentences(copies)
        more = f"; and so on, {len(said) - 3} more of the kind" if len(said) > 3 else ""
        first = next(iter(copies[0].unit.names.values()))
        yield Problem(
            f"{'; '.join(said[:3])}{more}, byte for byte",
            file=ckpt.holders[first],
            key=first,
            hint="convert again, and compare the names with those of the source",
        )
    ckpt.require_values()
