"""A tensor holds an absurdly large value, has the wrong dtype label, or its bytes in the wrong order.

## What it checks
Magnitude:
- The largest magnitude of each matrix and norm is at most 10,000 times the median over its siblings, the same tensor in other
  layers and experts.
- A tensor with fewer than two siblings (embedding, head, score, final norm, projectors, all tensors of a model of two layers) is
  compared with all matrices. It is absurd if it exceeds both a million times their median and 10,000.
- Biases and attention sinks are reported only if they are absurd beside their siblings and beside the matrices.

Dtype label: no F16 matrix has values that span what weights usually span only when read as BF16, and no BF16 matrix only when
read as F16. Three samples of 1 KiB have to agree; it reads at most 64 siblings. The rule does not look for this on the Hub.

## Why it matters
- A flipped exponent bit makes such a value. One is enough to saturate a layer for every token that meets it.
- Bytes of one dtype under the label of another have the right size and give nonsense: BF16 read as F16 is ± 1 to 2 throughout,
  F16 read as BF16 is almost zero.
- Bytes in the wrong order do the same.

## How to fix
Compare the file's hash with the original's, and fetch it again. If a whole matrix is off, correct the dtype in its header.

## When it can be wrong
- No sound model is known to have a trained value 10,000 times as large as the largest of its siblings; the largest known factors
  are some hundreds. A false alarm would be a buffer that is stored as a matrix under one name in every layer and holds a
  sentinel such as -3.4e38 in some layers only.
- It misses a flip of a lower exponent bit, or of any bit of a small value, if the result stays below the factor, and every flip
  of a sign or mantissa bit. Hashes find those (`ckptcheck manifest`).
- It does not judge vectors that are neither norm, bias nor sink, or biases with a number for each token.
- It does not judge the label of a vector or of a matrix of less than 4 KiB, where both readings may be weights, nor a label of FP8
  or of integers: CFG018 compares those with the labels of siblings. An F8_E4M3 weight that reaches 448 holds NaN as F8_E5M2
  (VAL001).
- It does not judge the label of a matrix of one sign, such as scales, or with fewer than 64 different magnitudes in a sample of
  512 numbers, as in weights rounded to two or three bits.
- `--ignore VAL006`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#53537, facebookresearch/metaseq#122 (18 numbers of thousands in a shard of OPT-175B)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.dtype_mislabel import OTHER_DTYPE, find_mislabelled
from ckptcheck.values.detectors.outliers import Outlier, find_outliers


@rule("VAL006", "absurd-magnitude", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    outliers_by_shard: dict[str, list[Outlier]] = {}
    for outlier in find_outliers(ckpt):
        outliers_by_shard.setdefault(outlier.stats.shard, []).append(outlier)
    for shard, shard_outliers in outliers_by_shard.items():
        worst = max(shard_outliers, key=lambda outlier: outlier.stats.absmax / outlier.typical)
        several = len(shard_outliers) > 1
        yield Problem(
            f"{_subject(shard_outliers)}largest magnitude is {worst.stats.absmax:.3g}, where {worst.typical:.3g} is "
            f"typical of {worst.reference}: "
            + ("flipped bits, or a wrong dtype or order of bytes" if several else "a flipped bit or a wrong dtype"),
            file=shard,
            key=worst.stats.name,
            hint="compare the file's hash with the original's: if it differs, fetch the file again; if not, export again, or take "
            "the save before",
        )
    yield from _check_labels(ckpt)
    ckpt.require_values()
    if not ckpt.can_sample:
        raise Skip("dtype labels are checked only on disk, and in an object store with --values")


def _subject(outliers: list[Outlier]) -> str:
    """Return the beginning of the sentence, which lists all outliers of the shard if there are several."""
    if len(outliers) == 1:
        return "its "
    names = join_truncated([outlier.stats.name for outlier in outliers])
    return f"{len(outliers):,} tensors hold an absurdly large value: {names}; of this one the "


def _check_labels(ckpt: Checkpoint) -> Iterator[Problem]:
    mislabelled: dict[tuple[str, str], list[str]] = {}
    for stats in find_mislabelled(ckpt):
        mislabelled.setdefault((stats.shard, stats.dtype), []).append(stats.name)
    for (shard, dtype), names in mislabelled.items():
        yield Problem(
            f"{count(len(names), 'matrix is', 'matrices are')} labelled {dtype}, but {'its' if len(names) == 1 else 'their'} "
            f"values look like weights only when read as {OTHER_DTYPE[dtype]}: {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint=f"correct the dtype in the header to {OTHER_DTYPE[dtype]}, or export again",
        )
