"""A tensor holds a value that is absurdly large beside its siblings.

## What it checks
The largest magnitude of each matrix and norm is compared with the median over the same one in the other layers (and experts):
10,000 times as large is absurd. What has fewer than two siblings (embedding, head, score, the final norm, projectors, the
tensors of a model of two layers) is compared with all matrices: there it takes a million times, and more than 10,000. Biases
and attention sinks have to be absurd beside their siblings and beside the matrices.

A matrix of F16 is not spread as weights are only when read as BF16, and none of BF16 when read as F16. Three samples of
1 KiB have to agree, of 64 siblings at most. Nobody looks for that on the Hub.

## Why it matters
A flipped exponent bit gives such a value, and one is enough to saturate a layer for every token that meets it. Bytes of one
dtype under the label of another have the right size and give nonsense: BF16 read as F16 is ± 1 to 2 throughout, F16 read as
BF16 is next to nothing. So do bytes in the other order, which is
named where three matrices of 16 bits are spread as weights are only so.

## How to fix
Compare the file's hash with the original's; fetch it again. If the whole matrix is off, correct the dtype in its header.

## When it can be wrong
A trained value 10,000 times as large as the largest of its siblings is not known from any sound model; the largest factors
known are some hundreds. A buffer that is stored as a matrix under one name in every layer, and holds a sentinel such as
-3.4e38 in some layers only, would be one. It misses much: a flip of a lower exponent bit, or of any bit of a small value,
can stay below the factor, and one of the sign or the mantissa always does; hashes find those (`ckptcheck manifest`). Vectors
that are no norm, bias or sink, and biases with a number for each token, are not judged. By its spread no matrix is judged
that is of one sign only, such as scales, or whose samples of 512 numbers hold fewer than 64 magnitudes, as weights rounded
to two or three bits do. `--ignore VAL006`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.label import OTHER, is_swapped, mislabelled
from ckptcheck.values.outliers import Outlier, outliers
from ckptcheck.values.roles import is_matrix


@rule("VAL006", "absurd-magnitude", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    absurd: dict[str, list[Outlier]] = {}
    for outlier in outliers(ckpt):
        absurd.setdefault(outlier.stats.shard, []).append(outlier)
    for shard, found in absurd.items():
        worst = max(found, key=lambda outlier: outlier.stats.absmax / outlier.usual)
        matrices = [each.stats.name for each in found if each.stats.name in ckpt.holders and is_matrix(each.stats)][:3]
        swapped = bool(matrices) and all(is_swapped(ckpt, name) for name in matrices)
        cause = "a wrong order of bytes" if swapped else "flipped bits or a wrong dtype"
        yield Problem(
            f"{_many(found)}largest magnitude is {worst.stats.absmax:.3g}, {worst.beside} it is {worst.usual:.3g}: "
            f"{cause if swapped or len(found) > 1 else 'a flipped bit or a wrong dtype'}",
            file=shard,
            key=worst.stats.name,
            hint="write the file again, in little-endian order"
            if swapped
            else "compare the file's hash with the original's",
        )
    yield from _mislabelled(ckpt)
    ckpt.require_values()
    if ckpt.source.local is None:
        raise Skip("wrong labels of dtypes are not looked for on the Hub")


def _many(found: list[Outlier]) -> str:
    """Begin the sentence: what is one of many is said before."""
    if len(found) == 1:
        return "its "
    return f"{len(found):,} tensors hold an absurdly large value: {few([each.stats.name for each in found])}; of this one the "


def _mislabelled(ckpt: Checkpoint) -> Iterator[Problem]:
    found: dict[tuple[str, str], list[str]] = {}
    for stats in mislabelled(ckpt):
        found.setdefault((stats.shard, stats.dtype), []).append(stats.name)
    for (shard, dtype), names in found.items():
        yield Problem(
            f"{count(len(names), 'matrix is', 'matrices are')} labelled {dtype}, but only as {OTHER[dtype]} "
            f"{'is its' if len(names) == 1 else 'are their'} values spread as weights are: {few(names)}",
            file=shard,
            key=names[0],
            hint=f"correct the dtype in the header to {OTHER[dtype]}, or export again",
        )
