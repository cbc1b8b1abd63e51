"""Two matrices of a layer that compute together do not belong together.

## What it checks
Training turns the two sides of a unit along each other in the residual stream: row j of up, and of the gate, and column j of down;
row j of the values and column j of the output projection; row j of the queries and of the keys. The rule measures the mean |cosine|
of such pairs, divided by that of units that do not match. It is 1 for matrices that have nothing to do with each other. It reports

- a pair with at most 1.2 (queries and keys 1.12), where the median of the layers has at least 3 (queries and keys 2), and every
  other layer but the first and the last clearly more than 1: at least 1.8 for feed-forward blocks, 1.5 for attention;
- eighths of a feed-forward block with at most 1.25 each, where the other eighths and the median of the layers have at least 4.

At first 64 units of each pair are compared, in 256 channels of the stream (512 for queries and keys). Where these have at most 2.0,
or an eighth of them 2.2, it is 256 units in 512 channels (2,048), and before anything is reported this is so in all layers. The
first and the last layer of a stack are not judged, nor a stack of fewer than six. What VAL010, VAL012, VAL014, VAL019, VAL021 or
VAL029 explains is left to them.

## Why it matters
The rows of a gate in the order of another tensor-parallel size, heads in another order in the queries than in the keys, one rank's
part of a matrix that was not loaded, a matrix of another step or layer: names, shapes and statistics of each tensor are right,
every engine loads it, and the layer computes nonsense. Norms (VAL029) tell how large a unit is; this tells where it points.

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

Matrices that were shuffled have 0.9 to 1.1, and at the first look at most 1.5, their eighths 1.7.

- A layer that was made in another way than those around it, or of which one matrix was trained anew with the others frozen.
- These are few models, and small ones. Where the median layer is not clear, nothing is said.
- A method that rotates heads or units (QuaRot in the values) leaves no pairs, and the rule is silent. So it is about packed
  weights, experts, fused matrices, and what is consistent: a whole feed-forward block or attention of another layer, units or
  heads that changed places in all matrices, an exchange in every layer.
- `--ignore VAL031`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#2013 and #5376 (rows in the order of ranks, and split twice), alibaba/ChatLearn#277
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.detectors.unpaired_units import UnpairedMatrices, find_unpaired_matrices


@rule("VAL031", "unpaired-units", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
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
