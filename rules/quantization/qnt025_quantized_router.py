"""A router is quantized.

## What it checks
The weights that choose experts (`mlp.gate`, `block_sparse_moe.gate`, `router`, `shared_expert_gate`) and the fusing projections of
multi-token prediction (`eh_proj`) are stored in full precision.

## Why it matters
A router's rounding errors are no noise in its output: they send tokens to other experts than the trainer sends them to. It is
less than a thousandth of the weights. SGLang never builds the routers of some models quantized, and drops them; vLLM does not
build those of DeepSeek and Mixtral quantized: QNT020 says where the tensors have nowhere to go.

## How to fix
Quantize again with `re:.*mlp.gate$` (or the name in your model) in the ignore list. slime and miles match the names of
parameters: there `re:.*mlp.gate.weight$` is needed too.

## When it can be wrong
Where a router was trained quantized, or was found to bear it. Ignore the rule there.

## Seen in
slime's debugging guide (INT4: the router is all zero after the first sync), vllm-project/llm-compressor's examples for MoE
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import in_order, stored

ROUTER = re.compile(r"(^|\.)(gate|router|shared_expert_gate|router\.(classifier|weight|proj|layer)|gate\.wg|eh_proj)$")
ENDINGS = ("gate", "router", "r.classifier", "r.weight", "r.proj", "r.layer", "gate.wg", "eh_proj")
"""Asked first: most of a large checkpoint's modules are experts."""


@rule(
    "QNT025",
    "quantized-router",
    severity="warning",
    when=lambda ckpt: ckpt.quantization is not None and not ckpt.is_partial and ckpt.anatomy.experts is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    kinds: dict[str, list[str]] = {}
    for name, quantized in stored(ckpt).items():
        if quantized and name.endswith(ENDINGS) and ROUTER.search(name):
            kinds.setdefault(name.rpartition(".")[2], []).append(name)
    for modules in kinds.values():
        first = in_order(modules)[0]
        rest = f", as are {len(modules) - 1:,} more" if len(modules) > 1 else ""
        yield Problem(
            f"{first} is quantized{rest}: its rounding errors send tokens to other experts than the trainer does",
            file=ckpt.holder(first),
            key=first,
            hint="quantize again with the router in the ignore list",
        )
