"""A square matrix is stored transposed.

## What it checks
Training makes some channels of the residual stream large and others small. Every matrix that reads the stream (queries, keys,
values) or writes it (the output of attention) shows that along one of its axes, but not along the other, which counts heads. For
each square matrix of a layer the rule computes the norms of 256 rows and of 256 columns. It fits both to the sizes of the channels
in the layer's norms and in neighbouring matrices that are not square, and compares how much of the variance each fit explains (R²,
adjusted for the number of neighbours).

It reports a matrix whose wrong axis has an R² of at least 0.2 while its right axis has at most a third of that, and at most 0.15.
If queries and outputs of one attention have the wrong axis, they may also hold each other's values.
The right axis follows from the name (`q_proj` reads, `o_proj` writes) and from how the layer's feed-forward matrices are stored.

Measured on five trained models that packages ship (SmolLM2-135M, all-MiniLM-L6-v2, AntiBERTy, two of rxnfp; 212 square
matrices): as they are, the wrong axis has at most 0.07, and none is reported. The right axis has 0.03 to 0.97. If each is
transposed by itself, 196 are reported: all 60 of SmolLM2, 23 of 24 of MiniLM, 46 of 48 twice of rxnfp, 21 of 32 of AntiBERTy.

## Why it matters
No shape check sees a transposed square matrix. Converters that transpose by shape, or forget to (GPT-2's Conv1D, Megatron, JAX),
write one. Every engine and trainer loads it silently, and the layer computes something else.

## How to fix
Transpose the matrix, or convert again. `ckptcheck diff` against the checkpoint that it was converted from shows each such matrix.

## When it can be wrong
- A method that rotates the residual stream (QuaRot, SpinQuant) makes its channels alike. Neither axis follows it then, and the
  rule reports nothing. The same holds for an untrained model.
- It misses matrices that hardly follow the stream: most keys of AntiBERTy, for example. In FP8 with one scale it sees 150 of 164,
  with INT8 and a scale for each row 109. It does not look at streams of fewer than 192 channels, weights that are packed or have
  a scale for each block, experts, nested layers (T5) and layers without norms. `ckptcheck diff` and `ckptcheck verify` see those
  too.
- `--ignore VAL021`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#47031 (matrices of experts transposed where the shape does not tell), ggml-org/llama.cpp#20200,
modal-projects/training-gym#100 (an export without its transpose)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.residual_stream import find_transposed_matrices
from ckptcheck.values.detectors.roles import group_by_file


@rule("VAL021", "transposed-matrix", severity="error", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    for shard, matrices in group_by_file(ckpt, find_transposed_matrices(ckpt)).items():
        first = matrices[0]
        wrong, right = ("rows", "columns") if first.axis == 0 else ("columns", "rows")
        wrong_r2, right_r2 = first.r2[first.axis], max(first.r2[1 - first.axis], 0)
        yield Problem(
            f"{count(len(matrices), 'square matrix is', 'square matrices are')} stored transposed: the {wrong} follow the residual "
            f"stream (R² {wrong_r2:.2f}), and the {right}, which should, do not (R² {right_r2:.2f}): "
            f"{join_truncated([matrix.name for matrix in matrices])}",
            file=shard,
            key=first.name,
            hint="ckptcheck diff against the source tells whether it is transposed or another one: transpose it, or convert again",
        )
    ckpt.require_values()
