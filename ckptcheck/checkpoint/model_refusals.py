"""What a model of transformers refuses in its config when it is built or computes, as was learned from its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptcheck.checkpoint.config import EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.config_class import known_activations, required_rope_keys
from ckptcheck.checkpoint.config_refusals import ACTIVATION, check_divisor
from ckptcheck.checkpoint.layer_settings import iter_unlike_layers
from ckptcheck.checkpoint.refused_values import RefusedKind
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, Setting
from ckptcheck.checkpoint.rope_refusals import LEGACY_ROPE_TYPES, PARTIAL, iter_rope
from ckptcheck.checkpoint.setting_text import Fault, describe, is_int, write_value
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import count


def iter_refused_by_model(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield what the class of the model refuses when it is built, although the class of the config accepts it."""
    for whole_path, divisor_path in table.divisors:
        yield from check_divisor(resolved.at(whole_path), resolved.at(divisor_path))
    typed = {f"{part.path}{name}" for part in resolved.parts for name in part.config_class.types}
    kinds: tuple[RefusedKind, ...] = ("null", "zero", "negative", "one", "untyped", "list", "float")
    for kind in kinds:
        for path in table.refused.list_refused(kind):
            if kind in ("untyped", "list") and path in table.sizes - typed:
                continue  # told below
            setting = _find_given(resolved, path) or (_find_lost_list(resolved, path) if kind == "null" else None)
            is_rate = "drop" in path and kind == "negative"
            if setting is None or (kind == "float" and setting.name in EXPERTS_PER_TOKEN):  # CFG026 has those
                continue
            if not _is_of_kind(setting.value, kind) and not (is_rate and _is_above_one(setting.value)):
                continue
            wanted = "a rate of dropout is from 0 to 1" if is_rate else None
            yield (
                setting.key_path,
                f"{describe(setting)}, but {wanted or f'{table.architecture} cannot compute with that'}",
            )
    for path, least in table.refused.least_lengths.items():
        setting = _find_given(resolved, path)
        if setting is not None and isinstance(setting.value, list) and len(setting.value) < least:
            yield (
                setting.key_path,
                f"{describe(setting)}, but {table.architecture} needs {count(least, 'entry', 'entries')}",
            )
    for path, accepted in table.refused.accepted_names.items():
        setting = _find_given(resolved, path)
        if setting is not None and isinstance(setting.value, str) and setting.value not in accepted:
            yield setting.key_path, f"{describe(setting)}, but {table.architecture} takes only {', '.join(accepted)}"
    yield from _iter_wrong_lists(table, resolved)
    yield from iter_unlike_layers(table, resolved)
    for name in table.refused.needed_parts:
        if not resolved.top.settings.get(name):
            said = (
                "is not there"
                if name not in resolved.top.settings
                else f"is {write_value(resolved.top.settings[name])}"
            )
            yield name, f"{name} {said}, but {table.architecture} is not built with the defaults of that part"
    for path in table.refused.checked_activations:
        setting = _find_given(resolved, path)
        if setting is None:
            continue
        # CFG023 has those that every class calls an activation.
        is_word = isinstance(setting.value, str) and not ACTIVATION.search(setting.name)
        if (is_word and setting.value not in known_activations()) or isinstance(setting.value, (list, dict)):
            yield setting.key_path, f"{describe(setting)}, but it must be the name of an activation function"
    for paths in table.refused.widths:
        own, (width, heads) = _find_given(resolved, paths[0]), (resolved.at(path) for path in paths[1:])
        if own is None or width is None or heads is None or not is_int(width.value) or not is_int(heads.value):
            continue
        if own.value is not None and heads.value > 0 and own.value != width.value // heads.value:
            yield (
                own.key_path,
                f"{describe(own)}, but {table.architecture} has heads of {width.value // heads.value:,} ({describe(width)}; "
                f"{describe(heads)})",
            )
    for path in sorted(table.sizes):
        setting = resolved.at(path)
        # CFG023 has the fields whose type the class of the config checks.
        if setting is None or setting.source != "config" or setting.key_path in typed:
            continue
        if isinstance(setting.value, (str, list, dict, bool)):
            yield setting.key_path, f"{describe(setting)}, but it is the size of a tensor and must be an integer"
    padding, rows = (
        (resolved.at(path) for path in table.refused.padding) if table.refused.padding is not None else (None, None)
    )
    if (
        padding is not None
        and rows is not None
        and is_int(padding.value)
        and is_int(rows.value)
        and not -rows.value <= padding.value < rows.value
    ):
        yield padding.key_path, f"{describe(padding)}, but the embedding has no such row: {describe(rows)}"
    yield from _iter_broken_limits(table, resolved)
    yield from _iter_unequal_copies(table, resolved)
    yield from _iter_unknown_rope(table, resolved)
    yield from _iter_partial_rope(table, resolved)


def _iter_wrong_lists(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield lists that end before the last layer, and those with a word that the model does not know."""
    for path, depth_path in table.refused.layer_lists.items():
        setting, depth = _find_given(resolved, path), resolved.at(depth_path)
        if setting is None or depth is None or not isinstance(setting.value, list) or not is_int(depth.value):
            continue
        if len(setting.value) < depth.value:
            yield (
                setting.key_path,
                f"{setting.key_path} has {count(len(setting.value), 'entry', 'entries')}, but {describe(depth)}",
            )
    for path, accepted in table.refused.accepted_entries.items():
        setting = _find_given(resolved, path)
        if setting is None or not isinstance(setting.value, list):
            continue
        for entry in setting.value:
            if entry not in accepted:
                said = f"{setting.key_path} has the entry {write_value(entry)}"
                yield setting.key_path, f"{said}, but {table.architecture} takes only {', '.join(accepted)}"
                break


def _iter_broken_limits(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield numbers that go further than another one lets the model compute with."""
    for path, whole in table.refused.divides.items():
        found = _find_limit(resolved, path, whole)
        if found is not None and found[0].value > 0 and found[1] % found[0].value:
            setting, limit, said = found
            yield (
                setting.key_path,
                f"{describe(setting)}, and {table.architecture} needs a number that divides {limit:,} ({said})",
            )
    for path, bound in table.refused.most.items():
        found = _find_limit(resolved, path, bound)
        if found is not None and found[0].value > found[1]:
            setting, limit, said = found
            yield setting.key_path, f"{describe(setting)}, but {table.architecture} takes at most {limit:,} ({said})"
    for path, bound in table.refused.least.items():
        own, other = resolved.at(path), resolved.at(bound)
        if own is None or other is None or "config" not in (own.source, other.source):
            continue
        if is_int(own.value) and is_int(other.value) and 0 <= own.value < other.value:
            yield (
                (own if own.source == "config" else other).key_path,
                f"{describe(own)}, but {table.architecture} takes at least {other.value:,} ({describe(other)})",
            )


def _iter_unequal_copies(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield numbers that config.json gives, and that differ from the setting which the class would copy."""
    parts = {part.path: part for part in resolved.parts}
    for path, original in table.refused.copies.items():
        own, other = resolved.at(path), resolved.at(original)
        if own is None or other is None or not is_int(own.value) or not is_int(other.value):
            continue
        if "config" not in (own.source, other.source) or own.path in resolved.other_parts:
            continue
        # Where a share of each head is rotated, the width may be another one.
        part = parts.get(own.path)
        rotated = [found.get("partial_rotary_factor") for _, found in iter_rope(part)] if part is not None else []
        if part is not None and any(
            factor not in (None, 1) for factor in (part.settings.get("partial_rotary_factor"), *rotated)
        ):
            continue
        if own.value != other.value and own.value > 0:
            given = own if own.source == "config" else other
            yield given.key_path, f"{describe(own)}, but {table.architecture} needs {other.value:,} ({describe(other)})"


def _find_limit(resolved: ResolvedConfig, path: str, bound: str) -> tuple[Setting, int, str] | None:
    """Return a setting, the number that limits it, and where that comes from; None where CFG026 has it, or one is unknown.

    bound: the path of the other setting, ``width/heads``, or ``experts/2``.
    """
    setting, limits = resolved.at(path), [resolved.at(each) for each in bound.split("/") if not each.isdigit()]
    given = [each for each in (setting, *limits) if each is not None and each.source == "config"]
    if setting is None or not given or setting.path in resolved.other_parts or not is_int(setting.value):
        return None
    is_grouped = setting.name == "n_group" and resolved.text.settings.get("model_type") in GROUPED_ROUTERS
    if setting.name in EXPERTS_PER_TOKEN or is_grouped:
        return None
    numbers = [each.value for each in limits if each is not None and is_int(each.value)]
    if len(numbers) < len(limits) or min(numbers) < 1:
        return None
    divisor = numbers[1] if len(numbers) > 1 else int(bound.partition("/")[2] or 1)
    limit = numbers[0] // divisor
    return setting, limit, "; ".join(describe(each) for each in limits if each is not None)


def _iter_unknown_rope(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield types of rotary embeddings that the model looks up, and that it or transformers does not have."""
    is_read = table.refuses_rope_types or "labels" in resolved.text.config_class.rope
    read = {*table.refused.rope_parts, *([resolved.text.path] if is_read else [])} - resolved.other_parts
    for part in resolved.parts:
        own = (part.config_class.rope.get("default") or {}).get("rope_type")
        is_only = part.path in table.refused.default_rope_parts - resolved.other_parts
        for path, parameters in iter_rope(part) if is_only or part.path in read else ():
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            if is_only and kind not in ("default", own):
                yield (
                    path,
                    f"{path} has the type {write_value(kind)}, but {table.architecture} computes the default one only",
                )
            elif kind not in (*required_rope_keys(), *LEGACY_ROPE_TYPES, own):
                yield path, f"{path} has the type {write_value(kind)}, and transformers has no such rotary embedding"


def _iter_partial_rope(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield a share of each head to rotate, where the model rotates whole heads only.

    A part of another type than the class has by default rotates as that type does (Mistral Small 4 in Mistral 3's wrapper).
    """
    for part in resolved.parts:
        if part.path in resolved.other_parts:
            continue
        own = (part.config_class.rope.get("default") or {}).get("rope_type", "default")
        rope = dict(iter_rope(part)) or {"": {}}
        for path, parameters in rope.items():
            kind = parameters.get("rope_type", parameters.get("type", own))
            place, share = f"{path}.{PARTIAL}", parameters.get(PARTIAL)
            if share is None:
                place, share = f"{part.path}{PARTIAL}", part.settings.get(PARTIAL)
            original = resolved.at(table.refused.copies.get(f"{part.path}head_dim", ""))
            width = part.settings.get("head_dim")
            if (
                original is not None
                and is_int(width)
                and isinstance(share, float)
                and int(width * share) == original.value
            ):
                continue  # latent attention: what is rotated has a width of its own
            is_part = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share < 1
            if is_part and isinstance(kind, str) and table.refused.rotates_whole_heads(part.path, kind):
                yield place, f"{place} is {share}, but {table.architecture} can rotate whole heads only"


def _find_given(resolved: ResolvedConfig, path: str) -> Setting | None:
    """Return a setting that config.json gives; None in a part of another type than the class has by default, which may take it."""
    setting = resolved.at(path)
    given = setting is not None and setting.source == "config" and setting.path not in resolved.other_parts
    return setting if given else None


def _find_lost_list(resolved: ResolvedConfig, path: str) -> Setting | None:
    """Return a list that config.json lacks and for which the class has no default but null (Bamba's layers with attention)."""
    setting = resolved.at(path)
    if (
        setting is None
        or setting.source != "default"
        or setting.value is not None
        or setting.path in resolved.other_parts
    ):
        return None
    part = next(part for part in resolved.parts if part.path == setting.path)
    return setting if (part.config_class.type_of(setting.name) or "").startswith("list[") else None


def _is_of_kind(value: Any, kind: RefusedKind) -> bool:
    if kind == "untyped":
        return isinstance(value, (str, dict))
    if kind in ("list", "float"):
        return isinstance(value, list if kind == "list" else float)
    if kind == "null" or isinstance(value, bool) or not isinstance(value, (int, float)):
        return kind == "null" and value is None
    return value == {"zero": 0, "one": 1}[kind] if kind != "negative" else value < 0


def _is_above_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1
