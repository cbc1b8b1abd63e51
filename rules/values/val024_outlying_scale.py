"""A matrix is many times as large, or as small, as the same matrix in the other layers.

## What it checks
- The root mean square of a matrix lies between a 16th of and 8 times the median over the same matrix in other layers. The rule
  reports at most a quarter of the layers, and only if the others agree: the matrix is three times as far from the median as any of
  them.
- In a model of eight layers or more, without the two first and the two last, it lies between a quarter of and 4 times that median,
  and between a quarter of and 4 times the median of the four nearest layers. The rule reports at most an eighth of the layers for
  this.

It looks at matrices with at least four siblings. It leaves out experts, since one that the router never chooses shrinks, and
matrices that look freshly initialised (VAL012).

The scan knows the largest magnitude of every tensor, which shows where to look; the rule then reads 32 rows of the matrix and of 8
siblings.

## Why it matters
A scale was applied twice or not at all: an adapter merged with the wrong strength, an inverse scale of a dequantized weight, a
factor of another layer. No loader checks the scale, and the layer's output drowns the residual stream or is lost in it.

## How to fix
Convert the layer again. `ckptcheck diff REFERENCE THIS` names the factor.

## When it can be wrong
- Trained layers differ, at the ends most. Measured on five trained models that packages ship (SmolLM2-135M, MiniLM-L6, three BERTs
  of rxnfp; 462 matrices), as a multiple of the median, and of the four nearest layers:

  | layers | of the median | of the nearest four | reported from |
  |---|---|---|---|
  | all | 0.26 to 2.00 | | 8, 1/16 |
  | without the two first and last | 0.64 to 1.60 | 0.83 to 1.31 | 4, 1/4 |

  The rule reports all of 24 matrices between the ends of SmolLM2, each scaled by 6 or by 1/6, and ten of twelve scaled by 4.5. It
  also reports a layer that was added later, or scaled on purpose: `--ignore VAL024`.
- It does not see a factor of 2 or 1/2 on one layer, or on one rank's part of it, because training leaves ratios nearly as large
  (1.60, 0.64). Nor does it see factors below 8 in the two first and last layers, a factor that all layers share, and one on norms,
  biases and experts. `ckptcheck diff` against an earlier checkpoint names such a factor, and `verify` sees it.

## Seen in
unslothai/unsloth#6200 (71 scales of fp8 weights were lost: their numbers are then about 1,000 times as large)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.init_detection import find_init_groups
from ckptcheck.values.detectors.scale_outliers import ScaleOutlier, find_scale_outliers


@rule("VAL024", "outlying-scale", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
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
    ckpt.require_values()
