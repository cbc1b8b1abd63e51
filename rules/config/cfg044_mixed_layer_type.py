"""Layers to which the config gives one type are stored as layers of different types.

## What it checks
Where `layer_types` or `layers_block_type` gives each layer its type (attention, convolution, linear attention, Mamba): the layers
of one type hold the same kind of mixer. Two mixers are of different kinds if each has tensors that the other lacks. The rule
compares the layers with each other, so it covers unknown architectures too. For the architectures of transformers it was learned
which tensors only layers of one type have, and each layer is held against its type, also in `mlp_layer_types`.

## Why it matters
transformers builds what the list says, fills it with random numbers, and leaves out what is stored, with an easily missed
warning; vLLM stops. A list of another size of the family, or one that an export script sorted, does this.

## How to fix
Copy the list from the config of the model this one was trained or converted from.

## When it can be wrong
The model's own code may choose the mixer by another setting than this list: use `--ignore CFG044`. In an unknown architecture a
list in which two types have changed places everywhere passes, and so does one that gives each type to one layer only.

## Seen in
No public report: edits of configs at random (`make false-clean`) showed that no rule saw it.
"""

import re
from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.parameters_table import LayerTypes, ParametersTable, Places, list_samples
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_layers

LISTS = ("layer_types", "layers_block_type")
OWN_LISTS = (*LISTS, "mlp_layer_types")
"""Lists that only known architectures are held against."""
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
        and any(isinstance(ckpt.config.get(key), list) for key in OWN_LISTS)
    ),
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    if ckpt.config is None:
        return
    table, resolved = ParametersTable.of(ckpt.config), ckpt.config.resolved
    types = table.layer_types if table is not None else ()
    places: Places = {}
    if table is not None and types:
        places = table.find_places(ckpt.layout, unquantized_names(list_samples(ckpt.layout)))
    told = False
    for each in types:
        setting = resolved.at(each.path) if resolved is not None else None
        if setting is None or setting.source != "config" or not isinstance(setting.value, list):
            continue
        if (found := _find_layers_of_other_types(each, setting.value, places)) is not None:
            told = True
            layers, name, of = found
            kind, one = setting.value[layers[0]], len(layers) == 1
            yield Problem(
                f'{setting.key_path} gives {format_layers(layers)} the type "{kind}", but {"it has" if one else "they have"} '
                f'{name} of a layer of the type "{of}"; transformers builds what the list says, of random numbers',
                file=ckpt.config.file,
                key=setting.key_path,
                hint="copy the list from the model's own config",
            )
    if told:
        return
    mixers = {layer: _find_mixer(names) for layer, names in ckpt.components.layers.items()}
    if len(set(mixers.values())) > MOST_KINDS:
        return
    for key in LISTS:
        listed = ckpt.config.get(key)
        if not isinstance(listed, list):
            continue
        by_type: dict[str, list[int]] = {}
        for layer in sorted(mixers):
            if layer < len(listed) and isinstance(listed[layer], str):
                by_type.setdefault(listed[layer], []).append(layer)
        for name, layers in by_type.items():
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


def _find_layers_of_other_types(
    types: LayerTypes, listed: list[object], places: Places
) -> tuple[list[int], str, str] | None:
    """Return the layers that have nothing of their type's own and all of another's, one such name, and that type."""
    stored = {
        name: places.get(f"{types.prefix}.{{}}.{name}") or set[int]() for own in types.own.values() for name in own
    }
    found: dict[tuple[object, str], list[int]] = {}
    for layer, kind in enumerate(listed):
        own = types.own.get(kind) if isinstance(kind, str) else None
        if own is None or any(layer in stored[name] for name in own):
            continue
        for other, names in types.own.items():
            if other != kind and names and all(layer in stored[name] for name in names):
                found.setdefault((kind, other), []).append(layer)
    if not found:
        return None
    (_, other), layers = min(found.items(), key=lambda item: item[1])
    return layers, min(types.own[other]), other


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
