"""A scale or another companion has no quantized weight to belong to.

## What it checks
Beside a weight that is not quantized, and where there is no weight at all, there is no tensor that only a quantized weight has;
and beside a quantized one there is none that its scheme does not know, such as zero points of a symmetric scheme.

## Why it matters
vLLM stops at a tensor for which the module it built has no place (`There is no module or parameter named …`). Where it built the
module quantized, it multiplies a weight that was never divided. A scale without any weight is what is left of a weight that
an export lost or stored under another name.

## How to fix
Remove the tensor if the weight is meant to be as it is; otherwise store the weight that the scale was computed for.

## When it can be wrong
transformers and a few of vLLM's models pass over tensors they do not know.

## Seen in
vllm-project/vllm#31757 (`shared_head.head.weight_scale` beside a head in BF16), unslothai/unsloth#6200
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.told import told

TEXTS = {
    "orphan": "it stands beside {weight}, which is not quantized{others}: vLLM stops, or scales what was never divided",
    "weightless": "there is no weight beside it{others}: what it belongs to was lost or has another name",
    "surplus": "it is no part of what the config declares for {weight}{others}: vLLM has no place for it and stops",
}


@rule(
    "QNT002",
    "orphan-companion",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for found in told(ckpt, *TEXTS):
        yield Problem(
            TEXTS[found.fault.kind].format(weight=found.weight, others=found.others),
            file=found.file,
            key=found.key,
            hint="remove it, or store the quantized weight that it was computed for",
        )
