"""Some tensors belong to modules that this architecture does not have.

## What it checks
For the architectures of transformers: every tensor's module (its name without numbers and without the last part) is one that
transformers saves for it. Excluded are heads and layers that predict further tokens, rotary buffers, the scales that
quantization adds, and layers that CFG016 reports.

## Why it matters
transformers omits such tensors with a warning, SGLang without one, so they have no effect.

## How to fix
Find out what wrote them: adapters that were not merged, another model's tensors, a wrapper's prefix.

## When it can be wrong
An option of the config that was not tried when the names were collected may add modules.

## Seen in
huggingface/transformers#47410, THUDM/slime#2270, sgl-project/sglang#38616
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import MTP, SCORE
from ckptcheck.text.formatting import join_truncated

LEGAL = re.compile(
    r"rotary_emb|rotary_pos_emb|position_ids|scale|quant|zero_point|centroids|g_idx|observer|kv_cache|(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$"
)


@rule(
    "CFG017",
    "foreign-module",
    severity="warning",
    when=lambda ckpt: KnownModules.of(ckpt.config) is not None and not ckpt.is_partial and not ckpt.is_mlx,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    known, anatomy = KnownModules.of(ckpt.config), ckpt.components
    if known is None or anatomy.stack is None or anatomy.is_draft:
        return
    names = list(anatomy.layout.outside)
    for stack in anatomy.layout.stacks.values():
        layers = anatomy.layers if stack is anatomy.stack else stack.layers
        names += {stack.full_name(0, rest) for parts in layers.values() for rest in parts}
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(known.module(name), []).append(name)
    own = {module for module in modules if module.startswith(anatomy.stack.prefix)}
    if not any(known.has(module) for module in own):
        return
    foreign = {
        module
        for module, members in modules.items()
        if not known.has(module)
        and not any(pattern.search(name) for name in members for pattern in (MTP, SCORE, LEGAL))
    }
    if foreign:
        first = modules[min(foreign)][0]
        yield Problem(
            f"{known.architecture} has no such {'module' if len(foreign) == 1 else 'modules'}, so transformers omits "
            f"{'its' if len(foreign) == 1 else 'their'} tensors: {join_truncated(foreign)}",
            file=ckpt.tensor_to_file.get(first) or ckpt.file_of(first.partition(".")[0]),
            key=first,
            hint="find out what wrote them: an adapter that was not merged, another model's tensors, a wrapper's prefix",
        )
