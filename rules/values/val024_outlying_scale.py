"""A matrix is many times as large, or as small, as the same matrix in the other layers.

## What it checks
- The root mean square of a matrix is less than 8 times, and more than a 16th of, the median over the same matrix in other layers.
  At most a quarter of the layers are out of line, and only where the others agree: the matrix is three times as far from the median
  as any of them.
- In a model of eight layers or more, in a layer that is none of the two first and two last, it is less than 4 times, and more than
  a quarter of, that median and the median of the four nearest layers. At most an eighth of the layers are out of line in this way.

It looks at matrices with at least four siblings. Experts are left out, since one that is never chosen shrinks, and so is what
looks freshly initialised (VAL012).

The largest magnitude, which is known of every tensor, says where to look; then 32 rows of the matrix and of 8 siblings are read.

## Why it matters
A scale was applied twice or not at all: an adapter merged with the wrong strength, an inverse scale of a dequantized weight, a
factor of another layer. Every loader takes the layer as it is, and its output drowns the residual stream or is lost in it.

## How to fix
Convert the layer again. `ckptcheck diff REFERENCE THIS` names the factor.

## When it can be wrong
- Trained layers differ, at the ends most. Measured on five trained models that packages ship (SmolLM2-135M, MiniLM-L6, three BERTs
  of rxnfp; 462 matrices), as a multiple of the median, and of the four nearest layers:

  | layers | of the median | of the nearest four | reported from |
  |---|---|---|---|
  | all | 0.26 to 2.00 | | 8, 1/16 |
  | without the two first and last | 0.64 to 1.60 | 0.83 to 1.31 | 4, 1/4 |

  Of 24 matrices between the ends of SmolLM2, each scaled by 6 or by 1/6, all are reported, and with 4.5 ten of twelve. A
  model whose one layer was added later, or scaled on purpose, is reported: `--ignore VAL024`.
- A factor of 2 or 1/2 on one layer, or on the part of it that one rank held, is too near to what training leaves (1.60, 0.64) to be
  told: `ckptcheck diff` against the checkpoint before names it, and `verify` sees it. So it is with factors below 8 in the two
  first and last layers, and with a factor that all layers share, or one on norms, biases and experts.

## Seen in
unslothai/unsloth#6200 (71 scales of fp8 weights were lost: their numbers are then about 1,000 times as large)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.init_detection import find_init_groups
from ckptcheck.values.detectors.scale_outliers import ScaleOutlier, find_scale_outliers


@rule("VAL024", "outlying-scale", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    by_layer: dict[tuple[int, bool], list[ScaleOutlier]] = {}
    outliers = find_scale_outliers(ckpt)
    # VAL012 reports matrices that an initialiser drew, at whatever scale it draws.
    fresh = {sample.name for group in find_init_groups(ckpt) for sample in group.at_init} if outliers else frozenset()
    for outlier in outliers:
        if outlier.name in fresh:
            continue
        by_layer.setdefault((outlier.layer, outlier.factor > 1), []).append(outlier)
    for (layer, is_large), outliers in by_layer.items():
        factors = sorted(outlier.factor if is_large else 1 / outlier.factor for outlier in outliers)
        numbers = " to ".join(
            dict.fromkeys(f"{factor:.{0 if factor >= 10 else 1}f}" for factor in (factors[0], factors[-1]))
        )
        verb = "is" if len(outliers) == 1 else "are"
        yield Problem(
            f"{count(len(outliers), 'matrix', 'matrices')} of layer {layer} {verb} {numbers} times "
            f"{'larger' if is_large else 'smaller'} than in other layers: "
            f"{join_truncated([outlier.role for outlier in outliers])}",
            file=ckpt.tensor_to_file.get(outliers[0].name),
            key=outliers[0].name,
            hint="convert the layer again; ckptcheck diff REFERENCE THIS names the factor",
        )
