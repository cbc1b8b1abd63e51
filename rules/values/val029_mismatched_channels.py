"""Channels of a matrix are in another order than those beside it, or of another layer.

## What it checks
Training makes some channels large and others small, in all matrices that share a channel. The rule checks two consequences:

- *Along the residual stream*, the norms of a matrix's channels follow the norms of its layer and the matrices of the layers beside
  it. The rule fits each to up to 24 of these (R², adjusted for their number). It reports a tensor with an R² of at most 0.1 where
  the median of the layers has at least 0.5, and at least three layers in four follow. It leaves out the first and the last
  layer, and stacks of fewer than six layers.
- *Where a fused matrix was split*: if gate and up, or queries, keys and values, do not agree with their partners in any layer, it
  puts their rows together as Megatron-LM, gpt-oss and GPT-NeoX join them (row by row, a piece for each rank, a group of heads),
  and reports the order in which they agree.

It leaves out matrices that another rule explains: transposed (VAL021), freshly drawn (VAL012), copied (VAL008, VAL014), of
another dtype (VAL006), or of signs alone (VAL007). VAL031 compares the units inside a layer. It uses the 256 rows and columns
of each matrix that the value pass samples, and the norms.

## Why it matters
The cause is a reshape in place of a transpose, shards joined in the order of their names (`rank10` before `rank2`), a fused matrix
cut into halves, or one matrix of another layer. Names, shapes and statistics of every tensor are right, every engine loads it, and
the layer computes nonsense.

## How to fix
Convert again. `ckptcheck diff` against the checkpoint that this one was made from shows each such matrix.

## When it can be wrong
Measured on seven trained models that packages ship (SmolLM2-135M, Gemma 3 270M, all-MiniLM-L6-v2, AntiBERTy, three BERTs of rxnfp):
of 868 matrices and norms along the stream it judges 616; as trained they have an R² of at least 0.17, and each is found shuffled.

- The rule needs a clear usual state. It is silent without one, as for SmolLM2's gates along the stream.
- These are few models, and small ones. The rule reports a layer of another origin (merged from another model), which correlates
  with no other.
- A method that rotates the stream (QuaRot, SpinQuant) makes its channels alike, and the rule reports nothing there. It does not see
  exchanged layers, the two norms of a layer exchanged, and experts, packed weights and streams of fewer than 192 channels.
- `--ignore VAL029`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#7161 (the saved gate carries rows of up, and the keys rows of the values), NVIDIA-NeMo/Megatron-Bridge#2013 and
#5376 (rows in the order of ranks, and split twice), NVIDIA-NeMo/RL#2802 (queries, keys and values joined without their groups),
alibaba/ChatLearn#277
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.norms import find_offsets
from ckptcheck.values.detectors.residual_stream import find_scattered_matrices
from ckptcheck.values.detectors.roles import group_by_file
from ckptcheck.values.detectors.split_order import find_wrong_splits


@rule("VAL029", "mismatched-channels", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    if find_offsets(ckpt):  # VAL015: every tensor holds its neighbour's numbers
        return
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
    for shard, matrices in group_by_file(ckpt, find_scattered_matrices(ckpt)).items():
        worst = min(matrices, key=lambda matrix: matrix.r2)
        yield Problem(
            f"the channels of {count(len(matrices), 'tensor do', 'tensors do')} not follow the residual stream, as those of other "
            f"layers do (R² {max(worst.r2, 0):.2f}, and {worst.usual:.2f} in the median layer): "
            f"{join_truncated([matrix.name for matrix in matrices])}",
            file=shard,
            key=matrices[0].name,
            hint="compare with the checkpoint that this one was made from: ckptcheck diff",
        )
    ckpt.require_values()
