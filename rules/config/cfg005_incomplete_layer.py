"""A layer lacks what its sibling layers have.

## What it checks
Layers are compared with each other, not with a list of names, so that an architecture nobody has heard of is checked too.
Layers are siblings when the config gives them the same entry in every per-layer list (`layer_types`, `block_configs`,
`mlp_only_layers`, …). A layer that has only some of what at least two siblings have is incomplete.

## Why it matters
transformers starts the missing tensors from random numbers with a warning that scrolls by; vLLM leaves uninitialised
memory inside a fused projection and reports it as loaded.

## How to fix
Export or convert again; look at which rank or shard the tensors should have come from.

## When it can be wrong
An architecture may leave something out of one layer by design and not say so in its config. A norm that only the first
layer lacks (ModernBERT) and layers that share keys and values with earlier ones (`num_kv_shared_layers`) are known.

## Seen in
NVIDIA-NeMo/RL#2124, NVIDIA-NeMo/Megatron-Bridge#2892
"""

import json
from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.phrase import few, ranges

Names = frozenset[str]


@rule(
    "CFG005", "incomplete-layer", severity="error", when=lambda ckpt: len(ckpt.anatomy.layers) > 2 and not ckpt.is_partial
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.anatomy
    assert anatomy.stack is not None
    siblings: dict[str, dict[int, Names]] = {}
    for layer, names in anatomy.layers.items():
        siblings.setdefault(_kind(ckpt.config, layer, len(anatomy.layers)), {})[layer] = frozenset(names)
    lacking: dict[Names, dict[int, list[int]]] = {}
    sharing = (ckpt.config.integer("num_kv_shared_layers") or 0) if ckpt.config is not None else 0
    for layers in siblings.values():
        numbers = Counter(layers.values())
        for layer, names in layers.items():
            if layer >= len(anatomy.layers) - sharing:
                continue
            if (fuller := _fuller(names, numbers)) and not (layer == 0 and all("norm" in name for name in fuller - names)):
                having = [other for other, theirs in layers.items() if theirs == fuller]
                lacking.setdefault(fuller - names, {})[layer] = having
    for missing, where in lacking.items():
        first = min(where)
        yield Problem(
            f"{anatomy.stack.prefix}: {'layer' if len(where) == 1 else 'layers'} {ranges(where)} "
            f"{'lacks' if len(where) == 1 else 'lack'} {few(missing)}, which layers {ranges(where[first])} have",
            file=ckpt.holder(anatomy.stack.name(first)),
            key=anatomy.stack.name(first, min(missing)),
            hint="export again; until then transformers starts it from random numbers",
        )


def _kind(config: Config | None, layer: int, depth: int) -> str:
    """Write down what the config's lists say of a layer: those with an entry per layer, and those of layer numbers."""
    if config is None:
        return ""
    said = []
    for name, value in sorted(config.text.items()):
        if not isinstance(value, list):
            continue
        if len(value) == depth:
            said.append(f"{name}={json.dumps(value[layer] if layer < depth else None, sort_keys=True)}")
        elif value and all(type(item) is int and 0 <= item < depth for item in value):
            said.append(f"{name}={layer in value}")
    return ";".join(said)


def _fuller(names: Names, numbers: Counter[Names]) -> Names | None:
    """Find what siblings have that have all of this and more: at least two of them, and more than are like this one.

    Several layers that all lack one whole component are a kind of their own, not damaged.
    """
    found = [
        other
        for other, number in numbers.items()
        if names < other and number >= 2 and number > numbers[names] and (numbers[names] == 1 or _torn(names, other))
    ]
    return max(found, key=lambda other: numbers[other], default=None)


def _torn(names: Names, other: Names) -> bool:
    """Whether something is missing from within a component, rather than a component as a whole."""
    return bool({name.partition(".")[0] for name in other - names} & {name.partition(".")[0] for name in names})
