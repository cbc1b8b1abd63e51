"""Parts that an engine fuses into one module are to be quantized differently.

## What it checks
What engines build as one module — q, k and v; gate and up; the two halves of MLA's first projection; the experts of a layer — is
quantized as a whole or not at all, under the same scheme, by the lists and targets of the config as each engine reads them.

## Why it matters
The engine stops: "Found different quantization schemes for the shards of …". transformers keeps the parts apart and loads
the checkpoint without a word.

## How to fix
Name all parts in the list, or none of them. `re:.*mlp.gate` takes gate_proj with the router, and leaves up_proj out.

## When it can be wrong
For a consumer that the checkpoint is not meant for: name yours with `--consumers`.

## Seen in
vllm-project/vllm `should_ignore_layer`, sgl-project/sglang `should_ignore_layer` (both raise)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import PARTS, refusals, views


@rule("QNT022", "split-fused-module", severity="error", when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    for who, error, number in refusals(ckpt):
        if PARTS not in error:
            continue  # QNT027
        yield Problem(
            f"{who} stops: {error}" + (f", and so in {number - 1:,} more" if number > 1 else ""),
            file=ckpt.quantization.main.file,
            key=ckpt.quantization.main.key,
            hint="name all parts of the fused module in the list, or none",
        )
