"""The config quantizes parts of a module that an engine fuses in different ways.

## What it checks
What engines build as one module is quantized as a whole or not at all, under one scheme, by the lists and targets of the config
as each engine reads them: q, k and v; gate and up; the two halves of MLA's first projection; the experts of a layer.

## Why it matters
The engine stops: "Found different quantization schemes for the shards of …". transformers keeps the parts separate and loads the
checkpoint without a warning.

## How to fix
Name all parts in the list, or none of them. `re:.*mlp.gate` matches gate_proj with the router, and leaves up_proj out.

## When it can be wrong
The checkpoint may not be made for this consumer. Name yours with `--consumers`. What an engine builds for an architecture that
this version of ckptcheck has not looked at is not known: the rule is then skipped and says so.

## Seen in
vllm-project/vllm `should_ignore_layer`, sgl-project/sglang `should_ignore_layer` (both raise)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_refusals, require_known_architecture


@rule(
    "QNT022",
    "split-fused-module",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt)),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    for refusal in find_refusals(ckpt):
        # other errors are QNT027's
        if not refusal.splits_module:
            continue
        others = f" ({refusal.number - 1:,} more like this)" if refusal.number > 1 else ""
        yield Problem(
            f"{refusal.consumer.label} stops: {refusal.error}{others}",
            file=ckpt.quantization.declarations[0].file,
            key=ckpt.quantization.declarations[0].key,
            hint="name all parts of the fused module in the list, or none",
        )
    require_known_architecture(ckpt)
