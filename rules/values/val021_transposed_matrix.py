"""A square matrix is stored transposed.

## What it checks
Training makes some channels of the residual stream large and others small. Every matrix that reads the stream (queries, keys,
values) or writes it (the output of attention) shows that along one of its axes, but not along the other, which counts heads. For
each square matrix of a layer the rule computes the norms of 256 rows and of 256 columns. It fits both to the sizes of the channels
in the layer's norms and in neighbouring matrices that are not square, and compares how much of the variance each fit explains (R²,
adjusted for the number of neighbours).

It reports a matrix whose wrong axis has an R² of at least 0.2 while its right axis has at most a third of that, and at most 0.15.
If both matrices of one attention have the wrong axis, they may also hold each other's values, and the message says so.
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
from ckptcheck.values.detectors.residual_stream import TransposedMatrix, find_transposed_matrices
from ckptcheck.values.detectors.roles import group_by_file


@rule("VAL021", "transposed-matrix", severity="error", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    found = find_transposed_matrices(ckpt)
    exchanged = _pair_exchanged(found)
    in_pairs = {name for pair in exchanged for name in pair}
    alone = [matrix for matrix in found if matrix.name not in in_pairs]
    for shard, matrices in group_by_file(ckpt, alone).items():
        first = matrices[0]
        wrong, right = ("rows", "columns") if first.axis == 0 else ("columns", "rows")
        wrong_r2, right_r2 = first.r2[first.axis], max(first.r2[1 - first.axis], 0)
        yield Problem(
            f"{count(len(matrices), 'square matrix is', 'square matrices are')} stored transposed: the {wrong} follow the residual "
            f"stream (R² {wrong_r2:.2f}), and the {right}, which should, do not (R² {right_r2:.2f}): "
            f"{join_truncated([matrix.name for matrix in matrices])}",
            file=shard,
            key=first.name,
            hint="transpose it, or convert again; ckptcheck diff against the source shows each such matrix",
        )
    if exchanged:
        reader, writer = min(exchanged)
        more = f" ({count(len(exchanged), 'pair')} of this kind)" if len(exchanged) > 1 else ""
        yield Problem(
            f"{reader} and {writer} hold each other's values, or are both stored transposed{more}: the first writes to the "
            "residual stream, and the second reads from it",
            file=ckpt.tensor_to_file[reader],
            key=reader,
            hint="convert again; ckptcheck diff against the source says which of the two it is",
        )
    ckpt.require_values()


def _pair_exchanged(matrices: list[TransposedMatrix]) -> set[tuple[str, str]]:
    """Return the pairs of a matrix that should read the stream and one that should write it, alone in their module."""
    by_module: dict[str, list[TransposedMatrix]] = {}
    for matrix in matrices:
        by_module.setdefault(matrix.name.rsplit(".", 2)[0], []).append(matrix)
    pairs = [sorted(pair, key=lambda matrix: matrix.axis) for pair in by_module.values() if len(pair) == 2]
    return {(first.name, second.name) for first, second in pairs if first.axis != second.axis}
