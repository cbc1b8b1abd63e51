"""A router is quantized.

## What it checks
The weights that choose experts (`mlp.gate`, `block_sparse_moe.gate`, `router`, `shared_expert_gate`) and the fusing projections of
multi-token prediction (`eh_proj`) are stored in full precision.

## Why it matters
- The rounding errors of a router send tokens to other experts than in the trainer. A router is less than a thousandth of the
  weights.
- SGLang never builds the routers of some models quantized, and drops their tensors. vLLM does not build those of DeepSeek and
  Mixtral quantized. QNT020 reports tensors that have no place.

## How to fix
Quantize again with `re:.*mlp.gate$` (or the name in your model) in the ignore list. slime and miles match the names of parameters:
they need `re:.*mlp.gate.weight$` too.

## When it can be wrong
A router may have been trained quantized, or tested so. Ignore the rule there.

## Seen in
slime's debugging guide (INT4: the router is all zero after the first sync), vllm-project/llm-compressor's examples for MoE
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import map_stored_modules, sort_modules

ROUTER = re.compile(r"(^|\.)(gate|router|shared_expert_gate|router\.(classifier|weight|proj|layer)|gate\.wg|eh_proj)$")


@rule(
    "QNT025",
    "quantized-router",
    severity="warning",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial and ckpt.components.num_experts is not None and not ckpt.is_mlx,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    is_quantized = map_stored_modules(ckpt)
    kinds: dict[str, dict[str, None]] = {}
    # A large checkpoint has a hundred thousand modules of a few kinds, nearly all of them experts.
    for template, tensors in ckpt.layout.names_by_template.items():
        module = template.rpartition(".")[0]
        if ROUTER.search(module):
            names = (name.rpartition(".")[0] for name in tensors)
            routers = dict.fromkeys(name for name in names if is_quantized.get(name))
            kinds.setdefault(module.rpartition(".")[2], {}).update(routers)
    for modules in filter(None, kinds.values()):
        first = sort_modules(modules)[0]
        rest = f", as are {len(modules) - 1:,} more" if len(modules) > 1 else ""
        yield Problem(
            f"{first} is quantized{rest}: its rounding errors send tokens to other experts than the trainer does",
            file=ckpt.file_of(first),
            key=first,
            hint="quantize again with the router in the ignore list",
            names=tuple(sort_modules(modules)),
        )
