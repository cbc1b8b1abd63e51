"""A stored `weight_shape` is not that of the packed weight.

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

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.quantization.storage import ModuleStorage
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
    wrong: list[tuple[str, str]] = []
    for stored, modules in ckpt.quantization.storages.items():
        part, weight = stored.parts.get("weight_shape"), stored.weight
        if part is None or weight is None or len(weight.shape) != 2 or part.dtype not in ("I64", "I32"):
            continue
        fits = _list_columns(ckpt.quantization.schemes, stored)
        for name in (stored.name(module, "weight_shape") for module in modules):
            if part.shape != (2,):
                text = f"has the shape {format_shape(part.shape)}, and not two numbers"
                wrong.append((name, f"{text}{{}}: transformers stops with a size mismatch"))
                continue
            tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
            raw = ckpt.source.read(shard.name, shard.locate(name), tensor.nbytes)
            half = tensor.nbytes // 2
            rows, columns = (int.from_bytes(raw[at : at + half], "little", signed=True) for at in (0, half))
            if len(raw) == tensor.nbytes and (rows != weight.shape[0] or (fits and columns not in fits)):
                text = f"is {format_shape((rows, columns))}, but {format_shape(weight.shape)} words hold another shape"
                wrong.append((name, f"{text}{{}}: compressed-tensors cuts the weight or stops"))
    if wrong:
        name, text = min(wrong)
        others = f", and so in {count(len(wrong) - 1, 'more module')}" if len(wrong) > 1 else ""
        yield Problem(
            f"it {text.format(others)}",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="write the shape that the weight has",
            names=tuple(sorted(each for each, _ in wrong)),
        )
    ckpt.require_values()


def _list_columns(schemes: Sequence[Scheme], stored: ModuleStorage) -> set[int]:
    """Return every number of columns that, under one of the schemes, gives the stored numbers of words and groups."""
    columns: set[int] = set()
    scale = stored.parts.get("weight_scale")
    assert stored.weight is not None
    words = stored.weight.shape[-1]
    for scheme in schemes:
        if scheme.format != "pack-quantized" or scheme.weights is None or not scheme.weights.bits:
            continue
        bits, group = scheme.weights.bits, scheme.weights.group_size
        fitting = set(range((words - 1) * 32 // bits + 1, words * 32 // bits + 1))
        if scheme.weights.strategy == "group" and group and scale is not None and scale.shape:
            fitting = {number for number in fitting if -(-number // group) == scale.shape[-1]}
        columns |= fitting
    return columns
