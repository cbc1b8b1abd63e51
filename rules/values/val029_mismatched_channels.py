"""Rows or columns of a matrix are in another order than those beside it, or of another layer.

## What it checks
Training makes some channels large and others small, in all matrices that share a channel. The rule checks five consequences:

- *Along the residual stream*, the norms of a matrix's channels follow the norms of its layer and the matrices of the layers beside
  it. The rule fits each to up to 24 of these (R², adjusted for their number). It reports a tensor with an R² of at most 0.1 where
  the median of the layers has at least 0.5, and at least three layers in four follow.
- *Inside a feed-forward block*, the norms of up's rows follow those of down's columns. It reports a block with a correlation of at
  most 0.25 where the median of the layers has at least 0.6. Then it looks for the reason: parts of two to eight ranks in another
  order, or matrices that belong to other layers.
- *Between norms*, each norm is more like the same norm of the two layers beside it than like their other norm. The rule reports the
  two norms of a layer if each is more like the other's (sum of the differences of correlations at most -0.2), and the median of the
  layers has at least 0.2.
- *Between values and outputs*, the norms of the values' rows follow those of the output projection's columns, head by head. It
  reports two layers (of at least four) whose values each follow the other's outputs (correlation of at least 0.35) and not their
  own (at most 0.2): one of the two projections is exchanged.
- *Where a fused matrix was split*: if gate and up, or queries, keys and values, do not agree with their partners in any layer, it
  puts their rows together as Megatron-LM, gpt-oss and GPT-NeoX join them (row by row, a piece for each rank, a group of heads),
  and reports the order in which they agree.

It leaves out the first and the last layer, stacks of fewer than six layers, and matrices that another rule explains: transposed
(VAL021), freshly drawn (VAL012), copied (VAL008, VAL014), of another dtype (VAL006), or of signs alone (VAL007). It uses the 256
rows and columns of each matrix that the value pass samples, and the norms.

## Why it matters
The cause is a reshape in place of a transpose, shards joined in the order of their names (`rank10` before `rank2`), a fused matrix
cut into halves, or one matrix of another layer. Names, shapes and statistics of every tensor are right, every engine loads it, and
the layer computes nonsense.

## How to fix
Convert again. `ckptcheck diff` against the checkpoint that this one was made from shows each such matrix.

## When it can be wrong
Measured on seven trained models that packages ship (SmolLM2-135M, Gemma 3 270M, all-MiniLM-L6-v2, AntiBERTy, three BERTs of rxnfp):

| | judged | lowest as trained | found if shuffled |
|---|---|---|---|
| matrices and norms along the stream | 616 of 868 | R² 0.17 | 616 |
| feed-forward blocks | 74 of 98 | correlation 0.34 | 74 |

The rule finds an exchange of the two norms of a layer in 19 of 28 layers of SmolLM2 and 10 of 10 of each BERT of rxnfp. As trained,
no sum is below -0.02. Gemma's norms differ too little, and the rule is silent.

It finds an exchange of the values of two layers in 206 of 435 pairs of SmolLM2 and 66 of 66 of each BERT of rxnfp, but in none of
MiniLM, whose values hardly correlate with the outputs. As trained, no two layers follow each other by more than 0.2.

- The rule needs a clear usual state. It is silent without one, as for SmolLM2's gates along the stream and MiniLM's
  blocks.
- These are few models, and small ones. The rule reports a layer of another origin (merged from another model), which correlates
  with no other.
- A method that rotates the stream (QuaRot, SpinQuant) makes its channels alike, and the rule reports nothing there. It does not see
  exchanged layers, exchanged queries or keys, rows of these in another order, and experts, packed weights and streams of fewer than
  192 channels.
- `--ignore VAL029`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#7161 (the saved gate carries rows of up, and the keys rows of the values), NVIDIA-NeMo/Megatron-Bridge#2013 and
#5376 (rows in the order of ranks, and split twice), NVIDIA-NeMo/RL#2802 (queries, keys and values joined without their groups),
alibaba/ChatLearn#277
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.channel_order import (
    MismatchedBlock,
    ScatteredMatrix,
    find_mismatched_blocks,
    find_scattered_matrices,
)
from ckptcheck.values.detectors.exchanged_norms import find_exchanged_norms
from ckptcheck.values.detectors.foreign_values import find_exchanged_values
from ckptcheck.values.detectors.split_order import find_wrong_splits

HINT = "compare with the checkpoint that this one was made from: ckptcheck diff"


@rule("VAL029", "mismatched-channels", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    for block in find_mismatched_blocks(ckpt):
        yield Problem(
            f"its units do not belong to those of {block.down}: their norms do not go together (correlation "
            f"{block.correlation:.2f}, and {block.usual:.2f} in the median layer){_explain(block)}",
            file=ckpt.tensor_to_file[block.up],
            key=block.up,
            hint=HINT,
        )
    for norms in find_exchanged_norms(ckpt):
        yield Problem(
            f"it and {norms.names[1]} seem to hold each other's weights: each is like the other in the layers beside it "
            f"(difference of correlations {norms.difference:.2f}, and {norms.usual:.2f} in the median layer)",
            file=ckpt.tensor_to_file[norms.names[0]],
            key=norms.names[0],
            hint=HINT,
        )
    for pair in find_exchanged_values(ckpt):
        yield Problem(
            f"it and {pair.values[1]} go with each other's output projection, and not with their own (correlation of norms "
            f"{pair.crossed:.2f}, and {pair.own:.2f}): the values, or the outputs, of the two layers are exchanged",
            file=ckpt.tensor_to_file[pair.values[0]],
            key=pair.values[0],
            hint=HINT,
        )
    for split in find_wrong_splits(ckpt):
        first, *others = split.tensors
        yield Problem(
            f"it and {join_truncated(others)} hold each other's rows, as in other layers: they were joined {split.order}, and "
            "split as if they lay one after the other (their norms go with those of their partner: correlation "
            f"{split.stored:.2f}, and {split.restored:.2f} in that order)",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="split the fused matrix in the order in which it was joined, and convert again",
        )
    scattered: dict[str, list[ScatteredMatrix]] = {}
    for matrix in find_scattered_matrices(ckpt):
        scattered.setdefault(ckpt.tensor_to_file[matrix.name], []).append(matrix)
    for shard, matrices in scattered.items():
        worst = min(matrices, key=lambda matrix: matrix.r2)
        yield Problem(
            f"the channels of {count(len(matrices), 'tensor do', 'tensors do')} not follow the residual stream, as those of other "
            f"layers do (R² {max(worst.r2, 0):.2f}, and {worst.usual:.2f} in the median layer): "
            f"{join_truncated([matrix.name for matrix in matrices])}",
            file=shard,
            key=matrices[0].name,
            hint=HINT,
        )
    ckpt.require_values()


def _explain(block: MismatchedBlock) -> str:
    if block.order:
        order = ", ".join(str(part + 1) for part in block.order)
        return f"; they do with its {len(block.order)} parts in the order {order}"
    if block.belongs is not None:
        down, up = block.belongs
        return f"; it goes with the one of layer {down}" + ("" if down == up else f", and that one with layer {up}")
    return ""
