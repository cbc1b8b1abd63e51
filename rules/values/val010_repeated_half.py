"""The second half of a matrix is its first half again.

## What it checks
No weight matrix repeats its first half of rows, or of columns, byte for byte. Of a matrix that joins several projections
each is looked at by itself: gate and up (`gate_up_proj`, Megatron's `linear_fc1`), the queries of `qkv_proj`,
`query_key_value` and `linear_qkv`, stacked plainly or by group, and the two halves of Mamba's `in_proj`. Of experts in one
tensor up to 16 are looked at, each by itself. Constant matrices are left out, and so are state-space tables such as `A_log`,
which start with equal rows.

## Why it matters
A tensor-parallel merge that took one rank's shard twice leaves this: the shape is right, every engine and trainer loads it
without a word, and half of the heads or neurons are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
A model whose single key and value head (MQA) was repeated on purpose to serve it on two ranks has equal halves in `k_proj`
and `v_proj`; within a fused matrix keys and values are left out for that. So has a layer that was widened by copying its
neurons, before further training. Not seen: a matrix that repeats in other shares, such as thirds, or in which two halves
differ in a single byte; one of gate and up alone where their columns alternate (gpt-oss); the joined inputs of linear
attention and of Mamba-2, member by member; packed integers. Parts of a Megatron run that are each other's copies are
MEG028's. `--ignore VAL010`, or a reason under `[ignore]`, silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.bridge.halves import repeated_half
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.roles import is_matrix, is_scale


@rule("VAL010", "repeated-half", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.source.local is None:
        raise Skip("not looked for on the Hub")
    repeated: dict[tuple[str, str], list[str]] = {}
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
        if (kind := repeated_half(ckpt, name)) is not None:
            repeated.setdefault((stats.shard, kind), []).append(name)
    for (shard, kind), names in repeated.items():
        yield Problem(
            f"{count(len(names), 'matrix repeats its', 'matrices repeat their')} first half of "
            f"{kind}, as a rank merged twice leaves it: {few(names)}",
            file=shard,
            key=names[0],
            hint="merge again from all tensor-parallel ranks",
        )
    ckpt.require_values()
