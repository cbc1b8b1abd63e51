"""A tensor holds a value that is absurdly large beside its siblings.

## What it checks
The largest magnitude of each matrix and norm is compared with the median over the same one in the other layers (and experts):
10,000 times as large is absurd. Embedding, head, score and the final norm, which have no siblings, are compared with all
matrices: there it takes a million times.

A matrix of F16 is not spread as weights are only when read as BF16, and none of BF16 when read as F16. Three samples of
1 KiB have to agree, of 64 siblings at most. Nobody looks for that on the Hub.

## Why it matters
A flipped exponent bit gives such a value, and one is enough to saturate a layer for every token that meets it. Bytes of one
dtype under the label of another have the right size and give nonsense: BF16 read as F16 is ± 1 to 2 throughout, F16 read as
BF16 is next to nothing.

## How to fix
Compare the file's hash with the original's; fetch it again. If the whole matrix is off, correct the dtype in its header.

## When it can be wrong
A trained value 10,000 times as large as the largest of its siblings is not known from any sound model; the largest factors
known are some hundreds. A buffer that is stored as a matrix under one name in every layer, and holds a sentinel such as
-3.4e38 in some layers only, would be one. It misses much: a flip of a lower exponent bit, or of any bit of a small value,
can stay below the factor, and one of the sign or the mantissa always does; hashes find those (`ckptcheck manifest`). A
matrix of one sign only, such as scales, is not judged by its spread. `--ignore VAL006`, or a reason under `[ignore]`,
silences it.

## Seen in
vllm-project/vllm#53537
"""

from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.label import OTHER, mislabelled
from ckptcheck.values.roles import is_matrix, is_norm, is_scale, template, vital
from ckptcheck.values.stats import TensorStats

FACTOR, FACTOR_WITHOUT_SIBLINGS = 10_000, 1_000_000


@rule("VAL006", "absurd-magnitude", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    siblings: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if (is_matrix(stats) or is_norm(stats)) and not is_scale(name):
            siblings.setdefault(template(name), []).append(stats)
    for alike in siblings.values():
        usual = median(stats.absmax for stats in alike)
        for stats in alike if len(alike) >= 3 and usual > 0 else ():
            if stats.absmax > FACTOR * usual:
                yield Problem(
                    f"its largest magnitude is {stats.absmax:.3g}, in its sibling layers it is {usual:.3g}: "
                    "a flipped bit or a wrong dtype",
                    file=stats.shard,
                    key=stats.name,
                    hint="compare the file's hash with the original's",
                )
    yield from _singletons(ckpt, [stats.absmax for alike in siblings.values() for stats in alike if is_matrix(stats)])
    yield from _mislabelled(ckpt)
    ckpt.require_values()
    if ckpt.source.local is None:
        raise Skip("wrong labels of dtypes are not looked for on the Hub")


def _singletons(ckpt: Checkpoint, magnitudes: list[float]) -> Iterator[Problem]:
    """Compare what there is once with all matrices."""
    usual = median(magnitudes) if len(magnitudes) >= 3 else 0
    inside = ckpt.anatomy.stack.prefix + "." if ckpt.anatomy.stack is not None else None
    norms = [
        name for name, stats in ckpt.values.tensors.items() if is_norm(stats) and inside and not name.startswith(inside)
    ]
    for name in dict.fromkeys((*vital(ckpt), *ckpt.anatomy.scores, *norms)):
        stats = ckpt.values.tensors.get(name)
        whole = stats is not None and (is_matrix(stats) or is_norm(stats))
        if stats is not None and usual and whole and stats.absmax > FACTOR_WITHOUT_SIBLINGS * usual:
            yield Problem(
                f"its largest magnitude is {stats.absmax:.3g}, in the model's matrices it is {usual:.3g}: "
                "a flipped bit or a wrong dtype",
                file=stats.shard,
                key=name,
                hint="compare the file's hash with the original's",
            )


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
