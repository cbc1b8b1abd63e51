"""The second half of a matrix repeats its first half.

## What it checks
- No weight matrix has two equal halves of rows or of columns, byte for byte.
- In a matrix that joins several projections it compares each by itself: gate and up (`gate_up_proj`, Megatron's `linear_fc1`), the
  queries of `qkv_proj`, `query_key_value` and `linear_qkv`, stacked plainly or by group, and the two halves of Mamba's `in_proj`.
- Where one tensor holds the experts of a layer it compares up to 16 of them, each by itself.
- Constant matrices are left out, and state-space tables such as `A_log`, which start with equal rows.

## Why it matters
A tensor-parallel merge that took one rank's shard twice leaves this. The shape is right, every engine and trainer loads it
without a warning, and half of the heads or neurons are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
- A model with a single key and value head (MQA) that was repeated to serve it on two ranks has equal halves in `k_proj` and
  `v_proj`. In fused matrices the rule leaves out keys and values for that reason.
- A layer that was widened by copying its neurons has equal halves until it is trained further.
- It misses a matrix that repeats in other shares, such as thirds, or whose halves differ in a single byte; gate or up alone where
  their columns alternate (gpt-oss); the single members of the joined inputs of linear attention and Mamba-2; packed integers.
- MEG028 reports parts of a Megatron run that are copies of each other.
- `--ignore VAL010`, or a reason under `[ignore]`, silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.bridge.repeated_halves import find_repeated_half
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.roles import is_matrix, is_scale


@rule("VAL010", "repeated-half", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.source.local is None:
        raise Skip("matrices are not read again on the Hub")
    repeated: dict[tuple[str, str], list[str]] = {}
    for name, stats in ckpt.values.tensors.items():
        if (
            name not in ckpt.tensor_to_file
            or not name.endswith(("weight", "proj"))
            or stats.constant
            or stats.zero
            or is_scale(name)
            or not is_matrix(stats)
        ):
            continue
        if (axis := find_repeated_half(ckpt, name)) is not None:
            repeated.setdefault((stats.shard, axis), []).append(name)
    for (shard, axis), names in repeated.items():
        yield Problem(
            f"{count(len(names), 'matrix repeats the first half of its', 'matrices repeat the first half of their')} "
            f"{axis} (one tensor-parallel rank seems to be merged twice): {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint="merge again from all tensor-parallel ranks",
        )
    ckpt.require_values()
