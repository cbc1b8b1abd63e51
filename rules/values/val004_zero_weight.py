"""A weight matrix is all zero.

## What it checks
No matrix is all zero, except what starts at zero by design (`lora_B` and the like, zero points, mask tokens, moments of an
optimizer), the tensors of VAL003, parts of a Megatron weight whose other parts are not, and matrices within a block that was
lost (both VAL005); nor is a packed or int8 weight, all of whose bytes are zero, or one expert of 1 KiB or more where all are
packed in one tensor (of plain ones that is VAL005's). A `lora_B` is not zero where at least three in four of its siblings,
and another of its own layer, are not. Biases may be zero. A checkpoint that looks freshly initialised as a whole is left out.

## Why it matters
A lost download block, a tensor that an exporter allocated and never filled, or a shard that was zeroed: the layer passes its
input through, and the model answers almost sensibly. An adapter that is zero in one layer does nothing there.

## How to fix
Compare the file's hash with the original, or fetch it again; export again.

## When it can be wrong
It is a warning because some methods zero a matrix on purpose: pruning, `o_proj` and `down_proj` of layers added to deepen a
model (they start as the identity), convolutions of a ControlNet, gates of adapters that start closed, a value head before
its training. A matrix that is lost and one that was meant look the same; what a method zeroes it says in its paper. Norms
and other vectors are not looked at: models with (1 + weight) norms, such as Gemma's, start them at zero (VAL012 compares
them with their siblings). An adapter that is zero throughout looks as one does before its training, and is not reported; nor
is one of an expert, or of a layer in which all are zero. In a packed weight zero bytes need not stand for zeros: quantizers
write the number zero as they like. `--ignore VAL004`, or a reason under `[ignore]`, silences it.

## Seen in
paiml/aprender#2337 (27 of 339 tensors: down_proj and v_proj)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few, ranges
from ckptcheck.values.blocks import zeroed
from ckptcheck.values.fresh import looks_untrained
from ckptcheck.values.lost_parts import zero_adapters, zero_experts
from ckptcheck.values.roles import is_matrix, is_packed, is_router, is_scale, starts_at_zero, vital
from ckptcheck.values.shards import zero_shards


@rule("VAL004", "zero-weight", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    told = vital(ckpt).keys() | {name for parts in zero_shards(ckpt).values() for name in parts}
    zero = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if stats.zero
        and (is_matrix(stats) or is_packed(stats))
        and not is_scale(name)
        and not starts_at_zero(name)
        and name not in told
        and not is_router(ckpt, stats)
    ]
    if zero and looks_untrained(ckpt):
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
    lost = {name for blocks in (zeroed(ckpt) if zero else {}).values() for block in blocks for name in block.lost}
    zero = [stats for stats in zero if stats.name not in lost]
    for shard in dict.fromkeys(stats.shard for stats in zero):
        names = [stats.name for stats in zero if stats.shard == shard]
        yield Problem(
            f"{count(len(names), 'matrix is', 'matrices are')} all zero: {few(names)}",
            file=shard,
            key=names[0],
            hint="compare the file's hash with the original, or export again",
        )
    for name, numbers in zero_experts(ckpt).items():
        yield Problem(
            f"expert{'s' if len(numbers) > 1 else ''} {ranges(numbers)} of {ckpt.tensors[name].shape[0]} "
            f"{'are' if len(numbers) > 1 else 'is'} all zero in this tensor",
            file=ckpt.holders[name],
            key=name,
            hint="compare the file's hash with the original, or export again",
        )
    if adapters := zero_adapters(ckpt):
        yield Problem(
            f"{count(len(adapters), 'adapter is', 'adapters are')} all zero, and the same of most other layers are not: "
            f"{few(adapters)}",
            file=ckpt.holders.get(adapters[0]),
            key=adapters[0],
            hint="save the adapter again, and look whether these modules were trained",
        )
    ckpt.require_values()
