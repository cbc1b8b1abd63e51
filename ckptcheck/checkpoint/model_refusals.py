"""What a model of transformers refuses in its config when it is built or computes, as was learned from its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptcheck.checkpoint.config import EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.config_class import required_rope_keys
from ckptcheck.checkpoint.config_refusals import check_divisor
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, Setting
from ckptcheck.checkpoint.rope_refusals import LEGACY_ROPE_TYPES, iter_rope
from ckptcheck.checkpoint.setting_text import Fault, describe, is_int, write_value
from ckptcheck.checkpoint.weights_table import RefusedKind, WeightsTable


def iter_refused_by_model(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield what the class of the model refuses when it is built, although the class of the config accepts it."""
    for whole_path, divisor_path in table.divisors:
        yield from check_divisor(resolved.at(whole_path), resolved.at(divisor_path))
    kinds: tuple[RefusedKind, ...] = ("null", "zero", "negative", "one", "untyped", "list", "float")
    for kind in kinds:
        for path in table.list_refused(kind):
            setting = _find_given(resolved, path)
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
    for path, least in table.least_lengths.items():
        setting = _find_given(resolved, path)
        if setting is not None and isinstance(setting.value, list) and len(setting.value) < least:
            yield setting.key_path, f"{describe(setting)}, but {table.architecture} needs {least} entries"
    for path, accepted in table.accepted_names.items():
        setting = _find_given(resolved, path)
        if setting is not None and isinstance(setting.value, str) and setting.value not in accepted:
            yield setting.key_path, f"{describe(setting)}, but {table.architecture} takes only {', '.join(accepted)}"
    for paths in table.widths:
        own, (width, heads) = _find_given(resolved, paths[0]), (resolved.at(path) for path in paths[1:])
        if own is None or width is None or heads is None or not is_int(width.value) or not is_int(heads.value):
            continue
        if own.value is not None and heads.value > 0 and own.value != width.value // heads.value:
            yield (
                own.key_path,
                f"{describe(own)}, but {table.architecture} has heads of {width.value // heads.value:,} ({describe(width)}; "
                f"{describe(heads)})",
            )
    typed = {f"{part.path}{name}" for part in resolved.parts for name in part.config_class.types}
    for path in sorted(table.sizes):
        setting = resolved.at(path)
        # CFG023 has the fields whose type the class of the config checks.
        if setting is None or setting.source != "config" or setting.key_path in typed:
            continue
        if isinstance(setting.value, (str, list, dict)):
            yield setting.key_path, f"{describe(setting)}, but it is the size of a tensor and must be an integer"
    padding, rows = (resolved.at(path) for path in table.padding) if table.padding is not None else (None, None)
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


def _iter_broken_limits(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield numbers that go further than another one lets the model compute with."""
    for path, bound in table.most.items():
        found = _find_limit(resolved, path, bound)
        if found is not None and found[0].value > found[1]:
            setting, limit, said = found
            yield setting.key_path, f"{describe(setting)}, but {table.architecture} takes at most {limit:,} ({said})"
    for path, whole in table.divides.items():
        found = _find_limit(resolved, path, whole)
        if found is not None and found[0].value > 0 and found[1] % found[0].value:
            setting, limit, said = found
            yield (
                setting.key_path,
                f"{describe(setting)}, and {table.architecture} needs a number that divides {limit:,} ({said})",
            )


def _iter_unequal_copies(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield numbers that config.json gives, and that differ from the setting which the class would copy."""
    parts = {part.path: part for part in resolved.parts}
    for path, original in table.copies.items():
        own, other = _find_given(resolved, path), resolved.at(original)
        if own is None or other is None or not is_int(own.value) or not is_int(other.value):
            continue
        # Where a share of each head is rotated, the width may be another one.
        part = parts.get(own.path)
        rotated = [found.get("partial_rotary_factor") for _, found in iter_rope(part)] if part is not None else []
        if part is not None and any(
            factor not in (None, 1) for factor in (part.settings.get("partial_rotary_factor"), *rotated)
        ):
            continue
        if own.value != other.value and own.value > 0:
            yield own.key_path, f"{describe(own)}, but {table.architecture} needs {other.value:,} ({describe(other)})"


def _find_limit(resolved: ResolvedConfig, path: str, bound: str) -> tuple[Setting, int, str] | None:
    """Return a setting, the number that limits it, and where that comes from; None where CFG026 has it, or one is unknown.

    bound: the path of the other setting, or ``width/heads``.
    """
    setting, limits = resolved.at(path), [resolved.at(each) for each in bound.split("/")]
    given = [each for each in (setting, *limits) if each is not None and each.source == "config"]
    if setting is None or not given or setting.path in resolved.other_parts or not is_int(setting.value):
        return None
    is_grouped = setting.name == "n_group" and resolved.text.settings.get("model_type") in GROUPED_ROUTERS
    if setting.name in EXPERTS_PER_TOKEN or is_grouped:
        return None
    numbers = [each.value for each in limits if each is not None and is_int(each.value)]
    if len(numbers) < len(limits) or min(numbers) < 1:
        return None
    limit = numbers[0] if len(numbers) == 1 else numbers[0] // numbers[1]
    return setting, limit, "; ".join(describe(each) for each in limits if each is not None)


def _iter_unknown_rope(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield types of rotary embeddings that the model looks up, and transformers does not have."""
    is_read = table.refuses_rope_types or "labels" in resolved.text.config_class.rope
    read = {*table.rope_parts, *([resolved.text.path] if is_read else [])} - resolved.other_parts
    for part in resolved.parts:
        own = (part.config_class.rope.get("default") or {}).get("rope_type")
        for path, parameters in iter_rope(part) if part.path in read else ():
            kind = parameters.get("rope_type", parameters.get("type", "default"))
            if kind not in (*required_rope_keys(), *LEGACY_ROPE_TYPES, own):
                yield path, f"{path} has the type {write_value(kind)}, and transformers has no such rotary embedding"


def _find_given(resolved: ResolvedConfig, path: str) -> Setting | None:
    """Return a setting that config.json gives; None in a part of another type than the class has by default, which may take it."""
    setting = resolved.at(path)
    given = setting is not None and setting.source == "config" and setting.path not in resolved.other_parts
    return setting if given else None


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
