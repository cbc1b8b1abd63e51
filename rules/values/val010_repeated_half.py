"""The second half of a matrix is its first half again.

## What it checks
No weight matrix repeats its first half of rows, or of columns, byte for byte. Constant matrices are left out, and so are
state-space tables such as `A_log`, which start with equal rows.

## Why it matters
A tensor-parallel merge that took one rank's shard twice leaves this: the shape is right, and half of the heads or neurons
are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
A model whose single key and value head (MQA) was repeated on purpose to serve it on two ranks has equal halves in `k_proj`
and `v_proj`. So has a layer that was widened by copying its neurons, before further training. One that repeats in other
shares, such as thirds, or in which two halves differ in a single byte, is not seen. `--ignore VAL010`, or a reason under
`[ignore]`, silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.compare import equal_halves
from ckptcheck.values.roles import is_matrix, is_scale


@rule("VAL010", "repeated-half", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.source.local is None:
        raise Skip("not looked for on the Hub")
    repeated: dict[tuple[str, int], list[str]] = {}
    for name, stats in ckpt.values.tensors.items():
        if (
            name not in ckpt.holders
            or not name.endswith(("weight", "proj"))
            or stats.constant
            or stats.zero
            or is_scale(name)
            or not is_matrix(stats)
        ):
            continue
        if (dimension := equal_halves(ckpt, name)) is not None:
            repeated.setdefault((stats.shard, dimension), []).append(name)
    for (shard, dimension), names in repeated.items():
        yield Problem(
            f"{count(len(names), 'matrix repeats its', 'matrices repeat their')} first half of "
            f"{'columns' if dimension else 'rows'}, as a rank merged twice leaves it: {few(names)}",
            file=shard,
            key=names[0],
            hint="merge again from all tensor-parallel ranks",
        )
    ckpt.require_values()
