"""Experts of a layer are quantized in different ways, or only some are.

## What it checks
The same projection is stored in the same way in all experts of a layer: the same tensors, dtypes and shapes.

## Why it matters
vLLM and SGLang build the experts of a layer as one module with one scheme. Both stop at, or drop, experts of another scheme.
SGLang judges the whole layer by the names of expert 0.

## How to fix
Quantize all experts of a layer in the same way. Experts that calibration did not reach need their scales too.

## When it can be wrong
transformers before version 5 keeps experts separate, and can load such a checkpoint.

## Seen in
vllm-project/vllm#54444 (experts that no token reached)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import format_ranges


@rule(
    "QNT026",
    "uneven-experts",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial and ckpt.components.num_experts is not None,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if _are_all_alike(ckpt):
        return
    ways: dict[tuple[str, str], dict[frozenset[str], list[int]]] = {}
    for storage, modules in ckpt.quantization.storages.items():
        way = frozenset(f"{part.ending} {part.dtype} {part.shape}" for part in storage.parts.values())
        for module in modules:
            layer, inside, rest = module.partition(".experts.")
            expert, _, projection = rest.partition(".")
            if inside and expert.isdecimal():
                ways.setdefault((f"{layer}.experts", projection), {}).setdefault(way, []).append(int(expert))
    uneven: dict[str, dict[str, list[int]]] = {}
    for (layer, projection), experts in ways.items():
        if len(experts) > 1:
            fewest = min(experts, key=lambda way: len(experts[way]))
            # What only lacks tensors that the others have is QNT001's.
            if not any(fewest < way for way in experts):
                uneven.setdefault(layer, {})[projection] = experts[fewest]
    for layer, projections in uneven.items():
        projection, fewest = next(iter(projections.items()))
        yield Problem(
            f"expert {format_ranges(sorted(fewest))} stores {projection} in another way than the other experts of this layer: "
            "vLLM and SGLang build them as one module",
            file=ckpt.file_of(f"{layer}.{fewest[0]}"),
            key=layer,
            hint="quantize all experts of a layer alike",
        )


def _are_all_alike(ckpt: QuantizedCheckpoint) -> bool:
    """Whether the tensors of the experts come in equal numbers, each kind with one dtype and shape: then nothing is uneven."""
    kinds: dict[str, set[tuple[int, int]]] = {}
    for template, forms in ckpt.forms_by_template.items():
        if ".experts.{}." in template:
            number = len(ckpt.layout.names_by_template[template])
            kinds.setdefault(template.rpartition(".")[0], set()).add((number, len(forms)))
    return all(len(found) == 1 and all(forms == 1 for _, forms in found) for found in kinds.values())
