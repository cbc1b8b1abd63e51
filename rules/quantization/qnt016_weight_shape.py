"""A stored `weight_shape`, or the state of bitsandbytes, is not that of the packed weight.

## What it checks
- The two numbers in `weight_shape` are the rows of `weight_packed`, and as many columns as pack into its words with the declared
  number of bits and as the scales have groups for.
- The `quant_state` beside a weight of bitsandbytes is the JSON that it writes. The weight holds as many numbers as its shape, and
  `absmax` and `nested_absmax` have a scale for each of its blocks.

## Why it matters
compressed-tensors unpacks to the stored shape: with too few columns it cuts the weight, with too many it stops. Tools that cut or
merge packed weights, for tensor parallelism or to remove experts, forget to change it. bitsandbytes stops at the first token, or
while it loads.

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
from ckptcheck.checkpoint.quantization.bitsandbytes_state import LONGEST, list_state_faults, parse_state
from ckptcheck.checkpoint.quantization.packed_shape import possible_columns
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, format_shape


@rule(
    "QNT016",
    "weight-shape",
    severity="error",
    on="quantization",
    when=lambda ckpt: any(
        "weight_shape" in way.parts or "quant_state" in way.parts for way in ckpt.quantization.storages
    ),
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
            raw = ckpt.source.read(shard.name, shard.locate(name), tensor.nbytes)
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
    yield from _check_states(ckpt)
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


def _check_states(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    """Yield the weights of bitsandbytes that contradict their state, or whose state it cannot read."""
    wrong: dict[str, list[tuple[str, str]]] = {}
    for stored, modules in ckpt.quantization.storages.items():
        part = stored.parts.get("quant_state")
        if part is None or part.dtype != "U8" or len(part.shape) != 1 or part.shape[0] > LONGEST:
            continue
        for module in modules:
            name = stored.name(module, "quant_state")
            tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
            raw = ckpt.source.read(shard.name, shard.locate(name), tensor.nbytes)
            if len(raw) < tensor.nbytes:
                continue
            state = parse_state(raw)
            if state is None:
                wrong.setdefault("quant_state", []).append((name, "is not the JSON that bitsandbytes writes"))
                continue
            for role, reason in list_state_faults(state, stored):
                wrong.setdefault(role, []).append((stored.name(module, role), reason))
    for found in wrong.values():
        name, reason = min(found)
        others = f", and so in {count(len(found) - 1, 'more module')}" if len(found) > 1 else ""
        yield Problem(
            f"it {reason}{others}: bitsandbytes cannot unpack the weight",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="quantize again, or copy the module from the checkpoint that this one was made of",
        )
