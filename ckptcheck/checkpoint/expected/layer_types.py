"""Finds layers of another kind than the config declares: experts or dense, attention or another mixer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.parameters_table import LayerTypes, ParametersTable, Places, list_samples
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, Setting
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.weights_table import LayerKinds, WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_layers

LISTS = ("layer_types", "layers_block_type")
OWN_LISTS = (*LISTS, "mlp_layer_types")
"""Lists that are checked for known architectures only."""
LAYER = re.compile(r"(.{0,400}?\b(?:layers|h|blocks))\.(\d+)\.(.+)\.[^.]+")
MIXER = re.compile(r"(?!.*(norm|ln))(.*(attn|attention|conv|mamba|mixer|ssm|recurrent|temporal_block))")
"""Names of the part of a layer that mixes tokens. Norms are named after it too, so the pattern excludes them."""
MOST_KINDS = 50
"""Most mixers that differ in their names: a model with more has no types of layers."""


def find_layers_of_other_kinds(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield layers with experts where the config asks for dense blocks, or the reverse; then layers with another mixer."""
    table = WeightsTable.of(ckpt.config)
    if (
        table is not None
        and table.layer_kinds is not None
        and ckpt.config is not None
        and ckpt.config.resolved is not None
    ):
        yield from _find_by_experts(ckpt, table.layer_kinds, ckpt.config.resolved)
    if (
        ckpt.config is not None
        and ckpt.components.layers
        and "auto_map" not in ckpt.config.value
        and any(isinstance(ckpt.config.get(key), list) for key in OWN_LISTS)
    ):
        yield from _find_by_lists(ckpt, explained)


def _find_by_experts(ckpt: Checkpoint, kinds: LayerKinds, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield the layers that have experts where the settings ask for a dense block, or the reverse."""
    assert ckpt.config is not None
    depth = resolved.find("num_hidden_layers")
    for by, paths in kinds.by:
        settings = [resolved.at(path) or _fill_in_null(path) for path in paths]
        if by.has_experts(0, [setting.value for setting in settings]) is not None:
            break
    else:
        return
    for layers in _find_stored_kinds(ckpt, kinds).values():
        # A vision encoder has dense blocks only, and other settings.
        if not any(True in stored for stored in layers.values()):
            continue
        odd: dict[bool, list[int]] = {}
        for layer, stored in sorted(layers.items()):
            wanted = by.has_experts(layer, [setting.value for setting in settings])
            if depth is not None and type(depth.value) is int and layer >= depth.value:
                continue
            if wanted is not None and stored == {not wanted}:
                odd.setdefault(wanted, []).append(layer)
        for wanted, numbers in odd.items():
            others = f" and {count(len(numbers) - 1, 'other layer')}" if len(numbers) > 1 else ""
            dense = "a dense feed-forward block"
            present, built = (dense, "experts") if wanted else ("experts", dense)
            given = [setting for setting in settings if setting.source == "config"]
            lacking = [setting for setting in settings if setting.value is None]
            problem = Problem(
                f"layer {numbers[0]}{others} {'have' if others else 'has'} {present}, but "
                f"{'; '.join(describe(setting) for setting in settings)}: transformers builds {built} there, of random numbers",
                file=ckpt.config.file,
                key=(given or lacking or settings)[0].key_path,
                hint="copy the setting from the model's own config",
            )
            yield Fault("kind", problem)


def _find_stored_kinds(ckpt: Checkpoint, kinds: LayerKinds) -> dict[str, dict[int, set[bool]]]:
    """Return, for each stack and layer, whether it has experts (True), a dense block (False), or both."""
    found: dict[str, dict[int, set[bool]]] = {}
    for template, names in ckpt.layout.names_by_template.items():
        if (first := LAYER.fullmatch(names[0])) is None:
            continue
        prefix, module = first[1], INDEX.sub("{}", first[3])
        if module not in kinds.experts and module not in kinds.dense:
            continue
        stack = ckpt.layout.stacks.get(prefix)
        if stack is not None and template.startswith(start := f"{prefix}.{{}}."):
            rest = template.removeprefix(start)
            places = [(prefix, layer) for layer, inside in stack.layers.items() if rest in inside]
        else:  # there is another number in front of the layer's
            places = [(match[1], int(match[2])) for name in names if (match := LAYER.fullmatch(name))]
        for prefix, layer in places:
            found.setdefault(prefix, {}).setdefault(layer, set()).add(module in kinds.experts)
    return found


def _fill_in_null(path: str) -> Setting:
    """Return the setting of a field that config.json lacks and that is null by default."""
    outer, _, name = path.rpartition(".")
    return Setting(name, None, "default", f"{outer}." if outer else "")


def _find_by_lists(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield the layers whose type in a list of the config disagrees with their tensors."""
    assert ckpt.config is not None
    table, resolved = ParametersTable.of(ckpt.config), ckpt.config.resolved
    types = table.layer_types if table is not None else ()
    places: Places = {}
    if table is not None and types:
        places = table.find_places(ckpt.layout, unquantized_names(list_samples(ckpt.layout)))
    is_said = False
    for each in types:
        setting = resolved.at(each.path) if resolved is not None else None
        if setting is None or setting.source != "config" or not isinstance(setting.value, list):
            continue
        if (found := _find_layers_of_other_types(each, setting.value, places)) is not None:
            is_said = True
            layers, name, of = found
            kind, one = setting.value[layers[0]], len(layers) == 1
            problem = Problem(
                f'{setting.key_path} gives {format_layers(layers)} the type "{kind}", but {"it has" if one else "they have"} '
                f'{name} of a layer of the type "{of}"; transformers builds what the list says, of random numbers',
                file=ckpt.config.file,
                key=setting.key_path,
                hint="copy the list from the model's own config",
            )
            yield Fault("kind", problem)
    if is_said:
        return
    mixers = {layer: _find_mixer(names) for layer, names in ckpt.components.layers.items()}
    if len(set(mixers.values())) > MOST_KINDS:
        return
    torn = explained.torn.get(ckpt.components.stack.prefix, set()) if ckpt.components.stack is not None else set()
    for key in LISTS:
        listed = ckpt.config.get(key)
        if not isinstance(listed, list):
            continue
        by_type: dict[str, list[int]] = {}
        for layer in sorted(mixers):
            if layer < len(listed) and isinstance(listed[layer], str):
                by_type.setdefault(listed[layer], []).append(layer)
        for name, layers in by_type.items():
            odd, usual = _find_odd_layers(layers, mixers)
            if torn.issuperset(odd):
                continue
            problem = Problem(
                f'{ckpt.config.key_path(key)} gives {format_layers(layers)} the type "{name}", but {format_layers(odd)} '
                f"{'has' if len(odd) == 1 else 'have'} {_name_part(mixers[odd[0]], mixers[usual])} where layer {usual} has "
                f"{_name_part(mixers[usual], mixers[odd[0]])}; transformers builds them alike, and fills what is not stored with "
                "random numbers",
                file=ckpt.config.file,
                key=ckpt.config.key_path(key),
                hint="copy the list from the model's own config",
            )
            yield Fault("kind", problem)


def _find_layers_of_other_types(
    types: LayerTypes, listed: list[object], places: Places
) -> tuple[list[int], str, str] | None:
    """Return the layers with no tensor peculiar to their type and all of another type's, one such name, and that type."""
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


def _find_odd_layers(layers: list[int], mixers: Mapping[int, frozenset[str]]) -> tuple[list[int], int]:
    """Return the layers whose mixer differs from that of most layers of their type, and the first of those."""
    kinds = [mixers[layer] for layer in layers if mixers[layer]]
    most = max(set(kinds), key=lambda kind: (kinds.count(kind), sorted(kind)), default=frozenset())
    odd = [layer for layer in layers if mixers[layer] - most and most - mixers[layer]]
    return odd, next((layer for layer in layers if mixers[layer] == most), 0)


def _name_part(mixer: frozenset[str], other: frozenset[str]) -> str:
    """Return the name of the first tensor that only one of two mixers has."""
    return min(mixer - other)
