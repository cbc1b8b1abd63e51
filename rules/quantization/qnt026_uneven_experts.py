"""Some experts of a layer are quantized and others are not, or in another way.

## What it checks
The same projection is stored alike in all experts of a layer: the same tensors, dtypes and shapes.

## Why it matters
vLLM and SGLang build the experts of a layer as one module with one scheme. Both stop at, or drop, what is stored otherwise; SGLang
judges the whole layer by the names of expert 0.

## How to fix
Quantize all experts of a layer alike. Experts that calibration did not reach still need their scales.

## When it can be wrong
transformers before version 5 keeps experts apart, and can load such a checkpoint.

## Seen in
vllm-project/vllm#54444 (experts that no token reached)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import ranges


@rule(
    "QNT026",
    "uneven-experts",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial and ckpt.anatomy.experts is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    assert ckpt.quantization is not None
    ways: dict[tuple[str, str], dict[int, list[int]]] = {}
    for number, modules in enumerate(ckpt.quantization.stored.values()):
        for module in modules:
            layer, inside, rest = module.partition(".experts.")
            expert, _, projection = rest.partition(".")
            if inside and expert.isdecimal():
                ways.setdefault((f"{layer}.experts", projection), {}).setdefault(number, []).append(int(expert))
    uneven: dict[str, dict[str, list[int]]] = {}
    for (layer, projection), experts in ways.items():
        if len(experts) > 1:
            few = min(experts.values(), key=len)
            uneven.setdefault(layer, {})[projection] = few
    for layer, projections in uneven.items():
        projection, few = next(iter(projections.items()))
        yield Problem(
            f"{projection} is stored otherwise in expert {ranges(sorted(few))} than in the others of this layer: vLLM and SGLang"
            " build them as one module",
            file=ckpt.holder(f"{layer}.{few[0]}"),
            key=layer,
            hint="quantize all experts of a layer alike",
        )
