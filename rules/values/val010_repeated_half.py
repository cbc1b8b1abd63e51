"""A half, a quarter, an eighth or a head of a matrix repeats another one.

## What it checks
- No weight matrix has two equal halves, quarters or eighths of its rows or of its columns, byte for byte. Packed integers and
  floats are compared as they are packed.
- In a matrix that joins several projections it compares each by itself: gate and up (`gate_up_proj`, Megatron's `linear_fc1`), the
  queries of `qkv_proj`, `query_key_value` and `linear_qkv`, stacked plainly or by group, and the two halves of Mamba's `in_proj`.
  Quarters and eighths are compared in gate and up, where these lie one after the other.
- No two heads of keys or values are equal, unless heads repeat in more than a quarter of the layers (a warning).
- If one tensor holds the experts of a layer, the rule compares up to 16 of them, each by itself.
- No two vectors or more have equal halves with at least four different numbers: Mamba's `A_log` and `dt_bias`, norms, biases. Norms
  of queries and keys, and biases of keys and values, are left out, because models repeat them for all heads.
- Constant matrices are left out, and state-space tables such as `A_log`, which start with equal rows.

## Why it matters
A tensor-parallel merge that took one rank's shard twice leaves this. The shape is right, every engine and trainer loads it
without a warning, and half of the heads or neurons (a quarter, an eighth) are lost.

## How to fix
Merge again from all tensor-parallel ranks.

## When it can be wrong
- A model with a single key and value head (MQA) that was repeated to serve it on two ranks has equal halves in `k_proj` and
  `v_proj`. In fused matrices the rule leaves out keys and values for that reason.
- The rule leaves out keys and values whose quarters or eighths all have twins, because models repeat heads to serve them on more
  ranks. For the same reason it leaves out keys and values whose heads repeat in more than a quarter of the layers. It reports a
  model in which single layers have fewer heads, repeated to make all layers alike.
- A layer that was widened by copying its neurons has equal halves until it is trained further.
- It misses a matrix that repeats in other shares, such as thirds, or whose shares differ in a single byte; gate or up alone where
  their columns alternate (gpt-oss); the single members of the joined inputs of linear attention and Mamba-2; quarters of the
  queries in a fused matrix. `ckptcheck diff` against the checkpoint that was merged sees all of them.
- VAL009 reports the rows of routers. A table of several codebooks (audio) may have started all of them from one.
- MEG028 reports parts of a Megatron run that are copies of each other.
- `--ignore VAL010`, or a reason under `[ignore]`, silences it.

## Seen in
verl-project/verl#7610 (replicated buffers concatenated over ranks), NVIDIA/Model-Optimizer#931 (vectors of Mamba)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.bridge.repeated_halves import find_repeated_half, is_fused_attention
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.byte_compare import is_cleared, map_pieces, require_sampling
from ckptcheck.values.detectors.repeated_shares import (
    RepeatedShare,
    find_repeated_heads,
    find_repeated_share,
    find_repeated_vectors,
    find_share_length,
)
from ckptcheck.values.detectors.roles import (
    find_vocabulary_tensors,
    group_by_file,
    is_matrix,
    is_packed,
    is_router,
    is_scale,
)
from ckptcheck.values.first_looks import COLUMNS, ROWS
from ckptcheck.values.stats import TensorStats

RANKS = {4: "quarter", 8: "eighth", 16: "sixteenth"}
HINT = "merge again from all tensor-parallel ranks, unless the model was widened by copying and not trained since"


@rule("VAL010", "repeated-half", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    tokens = find_vocabulary_tensors(ckpt)
    repeated: dict[tuple[str, str], list[str]] = {}
    shares: dict[tuple[str, RepeatedShare], list[str]] = {}
    matrices = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if name in ckpt.tensor_to_file
        and name.endswith(("weight", "proj", "weight_packed"))
        and not (stats.constant or stats.zero or is_scale(name))
        and (is_matrix(stats) or is_packed(stats))
        and not (is_cleared(ckpt, name, ROWS | COLUMNS) and not is_fused_attention(name))
    ]

    def compare(stats: TensorStats) -> str | RepeatedShare | None:
        if (axis := find_repeated_half(ckpt, stats.name)) is not None:
            return axis
        share = find_repeated_share(ckpt, stats.name, rows=not is_router(ckpt, stats))
        is_of_tokens = share is not None and share.axis == "rows" and stats.name in tokens
        return None if is_of_tokens and not find_share_length(ckpt, stats.name) else share

    for stats, found in zip(matrices, map_pieces(ckpt, compare, matrices), strict=True):
        if isinstance(found, str):
            repeated.setdefault((stats.shard, found), []).append(stats.name)
        elif found is not None:
            shares.setdefault((stats.shard, found), []).append(stats.name)
    reported = {name for names in (*repeated.values(), *shares.values()) for name in names}
    for head in find_repeated_heads(ckpt):
        if head.name not in reported:
            yield Problem(
                f"heads {head.first} and {head.second} of {head.heads} hold the same rows, byte for byte; of the {head.layers} "
                "layers with this projection, few have such copies",
                file=ckpt.tensor_to_file[head.name],
                key=head.name,
                hint="convert the layer again: its other heads were lost, unless this layer had fewer on purpose",
                severity="warning",
            )
    for (shard, axis), names in repeated.items():
        yield Problem(
            f"{count(len(names), 'matrix repeats the first half of its', 'matrices repeat the first half of their')} "
            f"{axis} (one tensor-parallel rank seems to be merged twice): {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    for (shard, share), names in shares.items():
        part = RANKS[share.ranks]
        yield Problem(
            f"{count(len(names), 'matrix holds', 'matrices hold')} the same {part} of the {share.axis} twice, byte for byte "
            f"(shares {share.first + 1} and {share.second + 1} of {share.ranks}: one tensor-parallel rank seems to be merged "
            f"twice): {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    for shard, names in group_by_file(ckpt, find_repeated_vectors(ckpt), str).items():
        yield Problem(
            f"{count(len(names), 'vector repeats its first half', 'vectors repeat their first half')} (one tensor-parallel rank "
            f"seems to be merged twice): {join_truncated(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    ckpt.require_values()
