"""Finds the settings of rotary embeddings in a config, and the ones that transformers refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptcheck.checkpoint.config_class import required_rope_keys
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.setting_text import Fault, is_int, write_value
from ckptcheck.text.formatting import count

NUMBERS = frozenset(
    ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
     "attention_factor", "mscale", "mscale_all_dim")
)  # fmt: skip
"""Keys that transformers computes with (`modeling_rope_utils.py`)."""
PARTIAL = "partial_rotary_factor"
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
    """Yield rotary embeddings of an unknown type, without a key that their type needs, or with a text in place of a number."""
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
        required = required_rope_keys().get(read, [])
        missing = [key for key in required if key not in parameters and key not in filled]
        if missing:
            named = f'"{kind}"' if read == kind else f'"{kind}", which {part.config_class.name} reads as "{read}"'
            yield path, f"{path} has the type {named}, but not {' and '.join(missing)}"
        if read == "longrope":
            yield from _check_factors(part, path, parameters)
        for key in sorted(NUMBERS & parameters.keys()):
            value = parameters[key]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number and (value is not None or key == "rope_theta" or key in required):
                yield f"{path}.{key}", f"{path}.{key} is {write_value(value)}, but it must be a number"
            elif is_number and key in required and not value > 0:  # type: ignore[operator]
                yield f"{path}.{key}", f"{path}.{key} is {write_value(value)}, but it must be more than 0"


def _check_factors(part: ResolvedPart, path: str, parameters: Mapping[str, object]) -> Iterator[Fault]:
    """Yield lists of factors whose length differs from the number of pairs of rotated channels."""
    width, partial = part.find("head_dim"), parameters.get(PARTIAL, part.settings.get(PARTIAL, 1.0))
    if part.find("qk_rope_head_dim") is not None or PARTIAL in (part.config_class.rope.get("default") or {}):
        return  # latent attention rotates a separate part, and some classes fill in the rotated share
    hidden, heads = part.find("hidden_size"), part.find("num_attention_heads")
    size = width.value if width is not None else None
    if size is None and hidden is not None and heads is not None and is_int(hidden.value) and is_int(heads.value):
        size = hidden.value // heads.value if heads.value > 0 else None
    if not is_int(size) or isinstance(partial, bool) or not isinstance(partial, (int, float)):
        return
    pairs = int(size * partial) // 2
    for key in ("short_factor", "long_factor"):
        factors = parameters.get(key)
        # one factor stands for all
        if isinstance(factors, list) and len(factors) not in (1, pairs):
            yield (
                f"{path}.{key}",
                f"{path}.{key} has {count(len(factors), 'number')}, but the heads have "
                f"{count(pairs, 'rotated pair', 'rotated pairs')} of channels",
            )
