"""What transformers refuses of the settings that single layers have for themselves (``per_layer_config``).

A config of transformers may give each layer other values than all layers have. A model then reads the value of each layer, and
stops where it reads one value for all: ``AmbiguousGlobalPerLayerAttributeError`` (transformers' integrations/heterogeneity).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptcheck.checkpoint.resolved_config import ResolvedConfig, ResolvedPart
from ckptcheck.checkpoint.setting_text import INTEGER, Fault, name_type, write_value
from ckptcheck.checkpoint.weights_table import WeightsTable


def iter_wrong_layer_settings(part: ResolvedPart) -> Iterator[Fault]:
    """Yield settings of single layers (``per_layer_config``) with a wrong type, and those that other layers do not have."""
    config_class, listed = part.config_class, part.settings.get("per_layer_config")
    if listed is not None and not isinstance(listed, dict):
        yield (
            f"{part.path}per_layer_config",
            f"{part.path}per_layer_config is {write_value(listed)}, but it must be an object",
        )
    for number, own in listed.items() if isinstance(listed, dict) else ():
        if not INTEGER.fullmatch(number):
            path = f"{part.path}per_layer_config"
            yield path, f"{path} has the key {write_value(number)}, which is no number of a layer"
        if not isinstance(own, dict):
            path = f"{part.path}per_layer_config.{number}"
            yield path, f"{path} is {write_value(own)}, but it must be an object"
    layers = (
        {number: own for number, own in listed.items() if isinstance(own, dict)} if isinstance(listed, dict) else {}
    )
    depth = part.find("num_hidden_layers")
    for number, own in layers.items():
        for key, value in own.items():
            path = f"{part.path}per_layer_config.{number}.{key}"
            if not config_class.accepts(key, value):
                wanted = name_type(config_class.type_of(key) or "")
                yield path, f"{path} is {write_value(value)}, but {config_class.name} takes only {wanted}"
            having = sum(key in other for other in layers.values())
            if (
                config_class.type_of(key) is None
                and key not in part.settings
                and depth is not None
                and having != depth.value
            ):
                yield path, f"{path} is given for some layers only, and {config_class.name} has no {key} for the others"


def iter_unlike_layers(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield settings of single layers where the model reads one value for all layers, or one for all of a kind."""
    place = f"{table.shared_settings_path}." if table.shared_settings_path else ""
    part = next((part for part in resolved.parts if part.path == place), None)
    if part is None or part.path in resolved.other_parts:
        return
    layers = _find_own_settings(part)
    for number, own in layers.items():
        for name, value in own.items():
            if name in table.shared_by_all_layers:
                path = f"{part.path}per_layer_config.{number}.{name}"
                yield (
                    path,
                    f"{path} is {write_value(value)}, but {table.architecture} reads one {name} for all layers "
                    f"({write_value(_read_shared(part, name))})",
                )
    kinds = part.settings.get("layer_types")
    if not table.kinds_share_settings or not isinstance(kinds, list):
        return
    first: dict[str, int] = {}
    for number, kind in enumerate(kinds):
        if not isinstance(kind, str):
            return
        one, other = layers.get(first.setdefault(kind, number), {}), layers.get(number, {})
        if one != other:
            name = next(
                name for name in (*one, *other) if name not in one or name not in other or one[name] != other[name]
            )
            path = f"{part.path}per_layer_config"
            yield (
                path,
                f"{path} gives layers {first[kind]} and {number} another {name}, but both are of the kind {kind}, and "
                f"{table.architecture} reads one for all layers of a kind",
            )
            return


def _find_own_settings(part: ResolvedPart) -> dict[int, dict[str, Any]]:
    """Return the settings of each layer that differ from those of all layers, as transformers keeps them."""
    listed = part.settings.get("per_layer_config")
    found = {}
    for number, own in listed.items() if isinstance(listed, dict) else ():
        if INTEGER.fullmatch(number) and isinstance(own, dict):
            differing = {name: value for name, value in own.items() if value != _read_shared(part, name)}
            if differing:
                found[int(number)] = differing
    return found


def _read_shared(part: ResolvedPart, name: str) -> Any:
    """Return the value of a setting that all layers have."""
    setting = part.find(name)
    return setting.value if setting is not None else part.settings.get(name)
