"""A stored `weight_shape` is not the shape of the packed weight.

## What it checks
The two numbers in `weight_shape` are the rows of `weight_packed`, and as many columns as pack into its words with the declared
number of bits and as the scales have groups for.

## Why it matters
compressed-tensors unpacks to the stored shape: with too few columns it cuts the weight, with too many it stops. Tools that cut or
merge packed weights, for tensor parallelism or to remove experts, forget to change it.

## How to fix
Write the shape that the weight has now.

## When it can be wrong
- A loader of your own may not read `weight_shape` at all.
- Columns are compared with the words and groups only. The rule misses a number of columns that packs into the same words, such
  as 30 for 32 of 4 bits without groups.
- On the Hub the shapes are not fetched, and the rule is skipped.

## Seen in
vllm-project/llm-compressor#2730
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.quantization.packed_shape import possible_columns
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, format_shape


@rule(
    "QNT016",
    "weight-shape",
    severity="error",
    on="quantization",
    when=lambda ckpt: any("weight_shape" in way.parts for way in ckpt.quantization.storages),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("the shapes are read from local files only")
    wrong: list[tuple[str, list[int], tuple[int, ...]]] = []
    for stored, modules in ckpt.quantization.storages.items():
        part, weight = stored.parts.get("weight_shape"), stored.weight
        if part is None or weight is None or len(weight.shape) != 2 or part.dtype not in ("I64", "I32"):
            continue
        if part.shape != (2,):
            yield from _misshapen(ckpt, sorted(stored.name(module, "weight_shape") for module in modules))
            continue
        fits = possible_columns(ckpt.quantization.schemes, stored)
        for module in modules:
            name = stored.name(module, "weight_shape")
            tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
            raw = ckpt.source.read(shard.name, shard.data_start + tensor.data_offsets[0], tensor.nbytes)
            if len(raw) < tensor.nbytes:
                continue
            half = tensor.nbytes // 2
            written = [int.from_bytes(raw[at : at + half], "little", signed=True) for at in (0, half)]
            if written[0] != weight.shape[0] or (fits and written[1] not in fits):
                wrong.append((name, written, weight.shape))
    if wrong:
        name, written, packed = min(wrong)
        others = f", and so in {count(len(wrong) - 1, 'more module')}" if len(wrong) > 1 else ""
        yield Problem(
            f"it is {format_shape(written)}, but {format_shape(packed)} words hold another shape{others}: "
            "compressed-tensors cuts the weight or stops",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="write the shape that the weight has",
        )
    ckpt.require_values()


def _misshapen(ckpt: QuantizedCheckpoint, names: list[str]) -> Iterator[Problem]:
    others = f", and so in {count(len(names) - 1, 'more module')}" if len(names) > 1 else ""
    yield Problem(
        f"it has the shape {format_shape(ckpt.tensors[names[0]].shape)}, and not two numbers{others}: transformers stops with a "
        "size mismatch",
        file=ckpt.tensor_to_file[names[0]],
        key=names[0],
        hint="write the shape that the weight has",
    )
