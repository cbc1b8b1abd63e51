"""A scale or another companion does not belong to any quantized weight.

## What it checks
- A tensor that only quantized weights have stands beside a quantized weight, not beside a plain one and not alone.
- Beside a quantized weight there is no companion that its scheme does not have, such as zero points of a symmetric scheme.

## Why it matters
- vLLM stops at a tensor for which its module has no place (`There is no module or parameter named …`).
- If vLLM builds the module quantized, it multiplies the weight by a scale that is not the weight's.
- A scale without any weight remains from a weight that an export lost or stored under another name.

## How to fix
Remove the tensor if the weight is right as it is. If not, store the weight of this scale.

## When it can be wrong
transformers and a few of vLLM's models ignore tensors that they do not know.

## Seen in
vllm-project/vllm#31757 (`shared_head.head.weight_scale` beside a head in BF16), unslothai/unsloth#6200
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import group_faults

TEXTS = {
    "orphan": "it belongs to {weight}, which is not quantized{others}: vLLM stops, "
    "or multiplies a weight that was never divided by this scale",
    "weightless": "there is no weight for it{others}: the weight was lost or has another name",
    "surplus": "the config declares no such tensor for {weight}{others}: vLLM has no place for it and stops",
}


@rule(
    "QNT002",
    "orphan-companion",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for group in group_faults(ckpt, *TEXTS):
        if group.fault.kind == "weightless" and f"{group.key.rpartition('.')[0]}.compressed" in ckpt.tensors:
            continue  # compressed-tensors stores only the nonzero numbers of a sparse weight; engines refuse that (QNT031)
        yield Problem(
            TEXTS[group.fault.kind].format(weight=group.weight, others=group.others),
            file=group.file,
            key=group.key,
            hint="remove it, or store the quantized weight that it was computed for",
        )
