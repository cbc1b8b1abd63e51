"""A matrix of a layer repeats another one, byte for byte.

## What it checks
No matrix of a layer has the bytes of the same matrix in another layer, or of another matrix of equal shape. No expert has the
bytes of an expert in another layer.

It leaves out:
- constant matrices, identities and others of almost only zeros, scales, norms and biases;
- layers that are copies as a whole (VAL008), experts within a layer (VAL009), parts of one weight of a Megatron run (MEG028);
- blocks that are shared by name, and models whose config says that layers share weights (or keys and values: those, then);
- layers of multi-token prediction.

## Why it matters
A conversion that mixes up names writes layer 11's `o_proj` into layer 12, the queries' weights for the keys, or the gate's for
the up projection. Names, shapes and statistics are right, every engine loads it, and one part of the model computes the function
of another. Its texts are a little worse, or nonsense.

## How to fix
Convert again, and compare the names in this finding with those of the source.

## When it can be wrong
- Layers that were copied to make a model deeper, if only some of their matrices were trained since (adapters on attention alone).
- Attention across towers that starts as a copy of self-attention.
- Models that share matrices between layers by design and store each, without a setting that says so.
- It misses a copy in which one byte differs, a transposed copy, and packed integers.
- `--ignore VAL014`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871 (one tensor written again and again), NVIDIA-NeMo/Megatron-Bridge#1984 (right
shapes, wrong values in some parameters)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.duplicate_tensors import describe_copies, find_equal_matrices


@rule("VAL014", "repeated-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    copies = find_equal_matrices(ckpt)
    if copies:
        sentences = describe_copies(copies)
        more = f"; and {len(sentences) - 3} more such cases" if len(sentences) > 3 else ""
        first = next(iter(copies[0].unit.names.values()))
        yield Problem(
            f"{'; '.join(sentences[:3])}{more}, byte for byte",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="convert again, and compare the names with those of the source",
        )
    ckpt.require_values()
