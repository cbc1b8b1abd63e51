"""Two matrices of a layer that compute together do not belong together.

## What it checks
Training aligns the two sides of a unit in the residual stream: row j of up, and of the gate, with column j of down; row j of the
values with column j of the output projection; row j of the queries with row j of the keys. The rule divides the mean |cosine| of
such pairs by that of units that do not match. The ratio is 1 for unrelated matrices. It reports

- a pair with at most 1.2 (queries and keys 1.12), where the median of the layers has at least 3 (queries and keys 2), and every
  other layer but the first and the last clearly more than 1: at least 1.8 for feed-forward blocks, 1.5 for attention;
- eighths of a feed-forward block with at most 1.25 each, where the other eighths and the median of the layers have at least 4.

The rule first compares 64 units of each pair, in 256 channels of the stream (512 for queries and keys). If the ratio is at most
2.0, or 2.2 in an eighth, it compares 256 units in 512 channels (2,048), and before it reports a pair it does so in all layers. It
leaves out the first and the last layer of a stack, stacks of fewer than six layers, and what VAL010, VAL012, VAL014, VAL019,
VAL021 or VAL029 explains. VAL029 compares how large channels are; this rule compares directions.

## Why it matters
The cause is a gate or an up with rows in the order of another tensor-parallel size, queries with another order of heads than the
keys, a matrix that lacks one rank's part, or a matrix of another step or layer. Names, shapes and statistics of each tensor are
right, every engine loads it, and the layer computes nonsense.

## How to fix
Convert again. `ckptcheck diff` against the checkpoint that this one was made from shows each such matrix.

## When it can be wrong
Measured on six trained models that packages ship; the layers between the first and the last, as trained:

| | up and down | gate and down | values and outputs | queries and keys |
|---|---|---|---|---|
| SmolLM2-135M | 4.2 to 10.2 | 3.0 to 8.5 | 1.8 to 18.6 | 1.9 to 6.9 |
| Gemma 3 270M | 3.1 to 8.1 | 2.5 to 6.4 | 2.5 to 21.7 | 1.3 to 7.0, not judged |
| all-MiniLM-L6-v2 | 7.5 to 7.9 | | 3.4 to 5.1 | 2.1 to 3.6 |
| three BERTs of rxnfp | 2.5 to 4.4 | | 1.0 to 4.8, not judged | 1.7 to 3.7 |

Shuffled matrices have 0.9 to 1.1; in the first comparison at most 1.5, and their eighths 1.7.

- A layer of another origin than its neighbours, or one in which a single matrix was trained again with the others frozen.
- These are few models, and small ones. The rule is silent if the median layer has no clear ratio.
- A method that rotates heads or units (QuaRot in the values) leaves no pairs, and the rule is silent. It is also silent about
  packed weights, experts, fused matrices, and consistent changes: a whole feed-forward block or attention of another layer, units
  or heads in another order in all matrices, an exchange in every layer.
- `--ignore VAL031`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#2013 and #5376 (rows in the order of ranks, and split twice), alibaba/ChatLearn#277
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.unpaired_units import UnpairedMatrices, find_unpaired_matrices


@rule("VAL031", "unpaired-units", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    for unpaired in find_unpaired_matrices(ckpt):
        first, *others = unpaired.names
        yield Problem(
            f"{_describe_units(unpaired)} do not belong to those of {join_truncated(others)}: they point along each other "
            f"{unpaired.measure:.1f} times as much as along other units, and {unpaired.usual:.1f} times in the median layer"
            + (f"; they belong to those of layer {unpaired.belongs}" if unpaired.belongs is not None else ""),
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="compare with the checkpoint that this one was made from: ckptcheck diff",
        )
    ckpt.require_values()


def _describe_units(unpaired: UnpairedMatrices) -> str:
    if not unpaired.parts:
        return "its units"
    numbers = ", ".join(str(part + 1) for part in unpaired.parts)
    return f"the units in {'eighth' if len(unpaired.parts) == 1 else 'eighths'} {numbers} of it"
