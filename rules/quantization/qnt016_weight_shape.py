"""A stored `weight_shape` is not the shape of the packed weight.

## What it checks
The two numbers in `weight_shape` are the rows of `weight_packed` and as many columns as pack into its words with the declared
number of bits, and as the scales have groups for.

## Why it matters
compressed-tensors unpacks to the shape that is written there: with too few columns it cuts the weight, with more it stops.
Tools that cut or merge packed weights, for tensor parallelism or to remove experts, forget it.

## How to fix
Write the shape of the weight as it is now.

## When it can be wrong
A loader of your own may not read `weight_shape` at all, and then nothing depends on it. Columns are held against the
words and groups only: a number of columns that packs into the same words passes, as 30 does for 32 of 4 bits where
there are no groups. On the Hub the shapes are not fetched, and the rule is skipped.

## Seen in
vllm-project/llm-compressor#2730
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.packed_shape import columns_of
from ckptcheck.phrase import count, shape


@rule(
    "QNT016",
    "weight-shape",
    severity="error",
    when=lambda ckpt: (
        ckpt.quantization is not None and any("weight_shape" in way.parts for way in ckpt.quantization.stored)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    _ = ckpt.values
    if ckpt.source.local is None:
        raise Skip("the shapes are read from local files only")
    wrong: list[tuple[str, list[int], tuple[int, ...]]] = []
    for stored, modules in ckpt.quantization.stored.items():
        part, weight = stored.parts.get("weight_shape"), stored.weight
        if (
            part is None
            or weight is None
            or part.shape != (2,)
            or len(weight.shape) != 2
            or part.dtype not in ("I64", "I32")
        ):
            continue
        fits = columns_of(ckpt.quantization.schemes, stored)
        for module in modules:
            name = stored.name(module, "weight_shape")
            tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]
            raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[0], tensor.nbytes)
            if len(raw) < tensor.nbytes:
                continue
            half = tensor.nbytes // 2
            found = [int.from_bytes(raw[at : at + half], "little", signed=True) for at in (0, half)]
            if found[0] != weight.shape[0] or (fits and found[1] not in fits):
                wrong.append((name, found, weight.shape))
    if wrong:
        name, found, packed = min(wrong)
        others = f", and so in {count(len(wrong) - 1, 'more module')}" if len(wrong) > 1 else ""
        yield Problem(
            f"it says {shape(found)}, which is not what {shape(packed)} words hold{others}: "
            "compressed-tensors cuts the weight or stops",
            file=ckpt.holders[name],
            key=name,
            hint="write the shape that the weight has",
        )
    ckpt.require_values()
