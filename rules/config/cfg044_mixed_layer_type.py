"""Layers to which the config gives one type are stored as layers of different types.

## What it checks
Where `layer_types` or `layers_block_type` gives each layer its type (attention, convolution, linear attention, Mamba): the layers
of one type hold the same kind of mixer. Two mixers are of different kinds if each has tensors that the other lacks. The rule
compares the layers with each other, so it covers unknown architectures too.

## Why it matters
transformers builds what the list says, fills it with random numbers, and leaves out what is stored, with an easily missed
warning; vLLM stops. A list of another size of the family, or one that an export script sorted, does this.

## How to fix
Copy the list from the config of the model this one was trained or converted from.

## When it can be wrong
The model's own code may choose the mixer by another setting than this list: use `--ignore CFG044`. A list in which two types
have changed places everywhere passes, and so does one that gives each type to one layer only.

## Seen in
No public report: edits of configs at random (`make false-clean`) showed that no rule saw it.
"""

import re
from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_layers

LISTS = ("layer_types", "layers_block_type")
MIXER = re.compile(r"(?!.*(norm|ln))(.*(attn|attention|conv|mamba|mixer|ssm|recurrent|temporal_block))")
"""Names of the part of a layer that lets tokens see each other; norms are named after it too."""
MOST_KINDS = 50
"""With more different mixers than this a model has no types of layers."""


@rule(
    "CFG044",
    "mixed-layer-type",
    severity="error",
    on="layers",
    when=lambda ckpt: (
        not ckpt.is_partial
        and ckpt.config is not None
        and "auto_map" not in ckpt.config.value
        and any(isinstance(ckpt.config.get(key), list) for key in LISTS)
    ),
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if ckpt.config is None:
        return
    mixers = {layer: _find_mixer(names) for layer, names in ckpt.components.layers.items()}
    if len(set(mixers.values())) > MOST_KINDS:
        return
    for key in LISTS:
        listed = ckpt.config.get(key)
        if not isinstance(listed, list):
            continue
        types: dict[str, list[int]] = {}
        for layer in sorted(mixers):
            if layer < len(listed) and isinstance(listed[layer], str):
                types.setdefault(listed[layer], []).append(layer)
        for name, layers in types.items():
            if (odd := _find_odd_layers(layers, mixers)) is None:
                continue
            usual = next(layer for layer in layers if layer not in odd)
            yield Problem(
                f'{ckpt.config.key_path(key)} gives {format_layers(layers)} the type "{name}", but {format_layers(odd)} '
                f"{'has' if len(odd) == 1 else 'have'} {_name_part(mixers[odd[0]], mixers[usual])} where layer {usual} has "
                f"{_name_part(mixers[usual], mixers[odd[0]])}; transformers builds them alike, and fills what is not stored with "
                "random numbers",
                file=ckpt.config.file,
                key=ckpt.config.key_path(key),
                hint="copy the list from the model's own config",
            )


def _find_mixer(names: set[str]) -> frozenset[str]:
    """Return the names of a layer's tensors in the parts that mix tokens."""
    return frozenset(name for name in unquantized_names(names) if MIXER.match(name.partition(".")[0]))


def _find_odd_layers(layers: list[int], mixers: Mapping[int, frozenset[str]]) -> list[int] | None:
    """Return the layers whose mixer is of another kind than that of most layers of their type; None where all are of one kind."""
    kinds = [mixers[layer] for layer in layers if mixers[layer]]
    usual = max(set(kinds), key=lambda kind: (kinds.count(kind), sorted(kind)), default=frozenset())
    return [layer for layer in layers if mixers[layer] - usual and usual - mixers[layer]] or None


def _name_part(mixer: frozenset[str], other: frozenset[str]) -> str:
    """Return the first tensor that only one of two mixers has."""
    return min(mixer - other)
