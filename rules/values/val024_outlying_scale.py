"""A matrix is many times as large, or as small, as the same matrix in the other layers.

## What it checks
The root mean square of a matrix is less than 8 times, and more than a 16th of, the median over the same matrix in other layers. It
looks at matrices with at least four siblings, of which at most a quarter are out of line, and only where the others agree: the
matrix is three times as far from the median as any of them. Experts are left out, since one that is never chosen shrinks.

The largest magnitude, which is known of every tensor, says where to look; then 32 rows of the matrix and of 8 siblings are read.

## Why it matters
A scale was applied twice or not at all: an adapter merged with the wrong strength, an inverse scale of a dequantized weight, a
factor of another layer. Every loader takes the layer as it is, and its output drowns the residual stream or is lost in it.

## How to fix
Convert the layer again. `ckptcheck diff REFERENCE THIS` names the factor.

## When it can be wrong
- Trained layers differ: over the matrices of SmolLM2-135M and MiniLM-L6 the root mean square is between 0.27 and 2.0 times the
  median. A model whose one layer was added later, or scaled on purpose, is reported: `--ignore VAL024`.
- It misses factors below 8, a factor that all layers share, norms and biases.

## Seen in
unslothai/unsloth#6200 (71 scales of fp8 weights were lost: their numbers are then about 1,000 times as large)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.scale_outliers import ScaleOutlier, find_scale_outliers


@rule("VAL024", "outlying-scale", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    by_layer: dict[tuple[int, bool], list[ScaleOutlier]] = {}
    for outlier in find_scale_outliers(ckpt):
        by_layer.setdefault((outlier.layer, outlier.factor > 1), []).append(outlier)
    for (layer, is_large), outliers in by_layer.items():
        factors = sorted(outlier.factor if is_large else 1 / outlier.factor for outlier in outliers)
        numbers = " to ".join(dict.fromkeys(f"{factor:.0f}" for factor in (factors[0], factors[-1])))
        verb = "is" if len(outliers) == 1 else "are"
        yield Problem(
            f"{count(len(outliers), 'matrix', 'matrices')} of layer {layer} {verb} {numbers} times "
            f"{'larger' if is_large else 'smaller'} than in other layers: "
            f"{join_truncated([outlier.role for outlier in outliers])}",
            file=ckpt.tensor_to_file.get(outliers[0].name),
            key=outliers[0].name,
            hint="convert the layer again; ckptcheck diff REFERENCE THIS names the factor",
        )
