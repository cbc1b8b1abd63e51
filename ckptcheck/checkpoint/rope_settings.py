"""Finds the settings of rotary embeddings in a config, and the ones that transformers refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptcheck.checkpoint.config_class import required_rope_keys
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.setting_text import Fault, write_value

LEGACY_TYPES = ("mrope", "su", "axial", "deepseek_yarn")
"""Types in released configs that some classes translate."""
UNREAD_TYPES = ("blt", "granitemoehybrid", "zamba2", "zaya")
"""Model types that ignore or replace the type; the other 125 of 129 classes look it up and fail if it is unknown (5.24)."""


def iter_rope(part: ResolvedPart) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the settings of rotary embeddings with their path: one for all layers, or one for each kind of layer."""
    # If a config has both, transformers takes rope_scaling in place of rope_parameters.
    name = next((key for key in ("rope_scaling", "rope_parameters") if part.settings.get(key)), None)
    settings = part.settings.get(name) if name is not None else None
    if not isinstance(settings, dict):
        return
    listed = part.settings.get("layer_types")
    labels = {*part.config_class.rope.get("labels", ()), *(map(str, listed) if isinstance(listed, list) else ())}
    kinds = [key for key in settings if key in labels]
    for kind in kinds:
        if isinstance(settings[kind], dict):
            yield f"{part.path}{name}.{kind}", settings[kind]
    if not kinds:
        yield f"{part.path}{name}", settings


def iter_wrong_rope(part: ResolvedPart) -> Iterator[Fault]:
    """Yield rotary embeddings of an unknown type, or without a key that their type needs."""
    facts = part.config_class.rope
    default = facts.get("default") or {}
    translated: Mapping[str, str] = facts.get("translated", {})
    known = {*required_rope_keys(), *translated, *facts.get("renamed", ()), default.get("rope_type")}
    if part.path:
        known.update(LEGACY_TYPES)
    # A class without rotary embeddings also checks a rope_scaling, but fills in no defaults.
    filled = {"rope_theta"} if facts or part.settings.get("rope_theta") else set[str]()
    if filled and part.find("max_position_embeddings") is not None:
        filled.add("original_max_position_embeddings")
    # Classes with one rotary embedding for each kind of layer translate transformers 4's keys themselves.
    has_kinds = any(isinstance(value, dict) for value in default.values())
    for path, parameters in iter_rope(part):
        kind = parameters.get("rope_type", "default" if has_kinds else parameters.get("type", "default"))
        is_read = bool(facts) and part.config_class.model_type not in UNREAD_TYPES
        if not isinstance(kind, str) or (is_read and kind not in known):
            yield path, f"{path} has the type {write_value(kind)}, and transformers has no such rotary embedding"
            continue
        read = translated.get(kind, kind)
        missing = [key for key in required_rope_keys().get(read, []) if key not in parameters and key not in filled]
        if missing:
            named = f'"{kind}"' if read == kind else f'"{kind}", which {part.config_class.name} reads as "{read}"'
            yield path, f"{path} has the type {named}, but not {' and '.join(missing)}"
