"""What transformers refuses in the settings of rotary embeddings.

Each function yields what one kind of check finds in one part of a config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from ckptcheck.checkpoint.config_class import required_rope_keys
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.setting_text import Fault, describe, is_int, write_value
from ckptcheck.text.formatting import count

NUMBERS = frozenset(
    ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
     "partial_rotary_factor", "attention_factor", "mscale", "mscale_all_dim", "llama_4_scaling_beta")
)  # fmt: skip
"""Keys of rotary embeddings that transformers computes with."""
BETAS = ("beta_fast", "beta_slow")
FINITE_IN_YARN = (*BETAS, "original_max_position_embeddings")
"""Numbers from which YaRN computes whole ones, and stops where they are NaN or infinite."""
PARTIAL = "partial_rotary_factor"
LEGACY_ROPE_TYPES = ("mrope", "su", "axial", "deepseek_yarn")
"""Names that released configs have and that some classes translate."""


UNREAD_TYPES = ("blt", "granitemoehybrid", "zamba2", "zaya")
"""Model types that build no rotary embedding from the type, or whose class replaces it; 125 of 129 classes look it up and stop."""


def iter_wrong_rope(part: ResolvedPart) -> Iterator[Fault]:
    """Yield rotary embeddings that lack a key which their type needs, or whose numbers are none."""
    yield from _check_rotary_width(part)
    rope = part.settings.get("rope_parameters")
    if part.config_class.rope.get("as_given") and "rope_parameters" in part.settings:
        yield from _check_given_rope(part, rope)
    listed = part.settings.get("layer_types")
    labels = {
        *part.config_class.rope.get("labels", ()),
        *(entry for entry in (listed if isinstance(listed, list) else ()) if isinstance(entry, str)),
    }
    for label in sorted(labels):
        if not isinstance(rope, dict):
            break
        if rope.get(label) is not None and not isinstance(rope[label], dict):
            path = f"{part.path}rope_parameters.{label}"
            yield path, f"{path} is {write_value(rope[label])}, but it must be an object"
    # A class without rotary embeddings checks a rope_scaling too, and fills nothing in.
    fills = bool(part.config_class.rope or part.settings.get("rope_theta"))
    filled = {"rope_theta"} if fills else set[str]()
    if fills and part.find("max_position_embeddings") is not None:
        filled.add("original_max_position_embeddings")
    for path, parameters in iter_rope(part):
        # Classes with one rotary embedding for each kind of layer translate the words of transformers 4 themselves.
        old = (
            "default" if _has_kinds(part.config_class.rope.get("default") or {}) else parameters.get("type", "default")
        )
        kind = parameters.get("rope_type", old)
        own = (part.config_class.rope.get("default") or {}).get("rope_type")
        is_tower = "vision" in part.path or "audio" in part.path
        is_unknown = (
            not part.path
            and kind not in (*required_rope_keys(), *_list_translated(part), own)
            and part.config_class.model_type not in UNREAD_TYPES
        )
        if part.config_class.rope and (
            kind is None or is_unknown or (is_tower and kind not in (*required_rope_keys(), *LEGACY_ROPE_TYPES, own))
        ):
            yield path, f"{path} has the type {write_value(kind)}, and transformers has no such rotary embedding"
        elif own == "axial" and kind not in (own, "default"):
            # Every class with such a tower refuses to build it with another (transformers 5.24, 33 of 33).
            yield path, f'{path} has the type "{kind}", and transformers computes only "axial" there'
        read = part.config_class.rope.get("translated", {}).get(kind, kind) if isinstance(kind, str) else None
        required = required_rope_keys().get(read, []) if read is not None else []
        missing = [key for key in required if key not in parameters and key not in filled]
        if missing:
            named = f'"{kind}"' if read == kind else f'"{kind}", which {part.config_class.name} reads as "{read}"'
            yield path, f"{path} has the type {named}, but not {' and '.join(missing)}"
        if kind == "longrope":
            yield from _check_factors(part, path, parameters)
        # Where the type is "default", only some models rotate a part of each head.
        default = part.config_class.rope.get("default")
        defaults = [default or {}, *(each for each in (default or {}).values() if isinstance(each, dict))]
        is_partial = (
            kind != "default" or PARTIAL in part.config_class.types or any(PARTIAL in each for each in defaults)
        )
        for key in sorted(NUMBERS & parameters.keys()):
            value = parameters[key]
            needed = key == "rope_theta" or key in required or (key == PARTIAL and is_partial)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number and (needed or value is not None):
                yield f"{path}.{key}", f"{path}.{key} is {write_value(value)}, but it must be a number"
            elif isinstance(value, float) and kind == "yarn" and key in FINITE_IN_YARN and not isfinite(value):
                yield f"{path}.{key}", f"{path}.{key} is {write_value(value)}, but it must be a finite number"
            elif is_number and ((key in required and value <= 0) or (kind == "yarn" and key in BETAS and value <= 0)):
                yield f"{path}.{key}", f"{path}.{key} is {write_value(value)}, but it must be more than 0"
            elif (
                is_number
                and key == PARTIAL
                and is_partial
                and not 0 <= value <= 1
                and value != (default or {}).get(key)
            ):
                yield (
                    f"{path}.{key}",
                    f"{path}.{key} is {write_value(value)}, but the part of each head that is rotated is from 0 to 1",
                )


def _list_translated(part: ResolvedPart) -> tuple[str, ...]:
    """Return the types of older releases that the class turns into one which transformers has."""
    return (*part.config_class.rope.get("translated", ()), *part.config_class.rope.get("renamed", ()))


def _check_given_rope(part: ResolvedPart, rope: Any) -> Iterator[Fault]:
    """Yield what a class lacks that reads rope_parameters as they are, and fills in nothing (Command A+, Gemma 4)."""
    path, default = f"{part.path}rope_parameters", part.config_class.rope.get("default") or {}
    if "rope_theta" in default:
        if not isinstance(rope, dict):
            yield path, f"{path} is {write_value(rope)}, but it must be an object"
        elif "rope_theta" not in rope:
            yield path, f"{path} has no rope_theta, and {part.config_class.name} does not fill it in"
        return
    listed = part.settings.get("layer_types")
    for kind in sorted(default) if isinstance(rope, dict) else ():
        if kind not in rope and (not isinstance(listed, list) or kind in listed):
            yield f"{path}.{kind}", f"{path} has no {kind}, which layers of the model have"


def _check_factors(part: ResolvedPart, path: str, parameters: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield lists of factors that have not one for each pair of rotated channels."""
    width, partial = part.find("head_dim"), parameters.get(PARTIAL, part.settings.get(PARTIAL, 1.0))
    if part.find("qk_rope_head_dim") is not None or PARTIAL in (part.config_class.rope.get("default") or {}):
        return  # latent attention rotates a part of its own, and some classes fill the share in
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


def iter_lost_rope(part: ResolvedPart, needed: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    """Yield the kinds of layers whose rotary embeddings are given for other kinds only, or without a base.

    needed: what the model cannot do without (`ParametersTable.find_needed_rope`).
    """
    settings, listed = part.settings.get("rope_parameters"), part.settings.get("layer_types")
    labels = {kind for kinds in needed.values() for kind in kinds}
    types = {entry for entry in listed if isinstance(entry, str)} if isinstance(listed, list) else set[str]()
    default = part.config_class.rope.get("default") or {}
    by_kind = any(isinstance(value, dict) for value in default.values())
    # A config without rotary embeddings of its own may be around one that has them (Dots3 Note).
    if settings is None and part.config_class.rope and needed.get("absent") and not by_kind:
        yield f"{part.path}rope_parameters", f"{part.path}rope_parameters has nothing for {needed['absent'][0]}"
    # a kind that the class has by default, and no layer of this model is of, tells that the settings are of one kind each
    kinds = {kind for kind, value in default.items() if isinstance(value, dict)}
    scaling = part.settings.get("rope_scaling")
    # Without rope_parameters, a class that fills in the kinds that are absent makes all of them of the one (ModernBERT).
    is_needed = needed.get("flat") if isinstance(settings, dict) else needed.get("absent")
    given = settings if isinstance(settings, dict) else default
    if is_needed and _has_kinds(given) and isinstance(scaling, dict) and scaling and not _has_kinds(scaling):
        path = f"{part.path}rope_scaling"
        yield path, f"{path} takes the place of rope_parameters, and has nothing for {is_needed[0]}"
        return
    if not isinstance(settings, dict):
        return
    # settings of no known kind at all are those of one kind under a wrong name, unless they are for all layers
    is_lost = (
        bool(needed.get("absent")) and bool(settings) and all(isinstance(value, dict) for value in settings.values())
    )
    if not is_lost and not (labels | types | kinds) & settings.keys():
        return
    labels &= types or labels
    for kind in sorted(labels):
        path = f"{part.path}rope_parameters.{kind}"
        found = settings.get(kind)
        if kind not in settings and kind in needed.get("absent", ()):
            yield path, f"{part.path}rope_parameters has no {kind}, which layers of the model have"
        elif found is None and kind in settings and kind in (*needed.get("null", ()), *needed.get("absent", ())):
            yield path, f"{path} is null, but layers of this type rotate their heads"
        elif isinstance(found, dict) and "rope_theta" not in found and kind in needed.get("theta", ()):
            yield path, f"{path} has no rope_theta"


def _has_kinds(rope: Mapping[str, Any]) -> bool:
    """Whether settings of rotary embeddings are one for each kind of layer."""
    return any(isinstance(value, dict) for value in rope.values())


def _check_rotary_width(part: ResolvedPart) -> Iterator[Fault]:
    """Yield an odd width of the heads, where all of it is rotated in pairs."""
    width, hidden, heads = part.find("head_dim"), part.find("hidden_size"), part.find("num_attention_heads")
    if (
        not part.config_class.rope.get("saved")
        or "labels" in part.config_class.rope
        or "head_dim" not in part.config_class.types
    ):
        return
    value, source = (width.value, width) if width is not None else (None, heads)
    if value is None and hidden is not None and heads is not None and is_int(hidden.value) and is_int(heads.value):
        value, source = hidden.value // heads.value if heads.value > 0 else None, heads
    partial = [
        part.settings.get("partial_rotary_factor"),
        *(found.get("partial_rotary_factor") for _, found in iter_rope(part)),
    ]
    if (
        source is not None
        and is_int(value)
        and value > 4
        and value % 2
        and all(factor in (None, 1, 1.0) for factor in partial)
    ):
        derived = f" ({describe(source)})" if source is not width else ""
        yield source.key_path, f"{part.path}head_dim is {value:,}{derived}, and rotary embeddings need an even number"


def iter_rope(part: ResolvedPart) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the settings of rotary embeddings: one for all layers, or one for each kind of layer."""
    name = next((key for key in ("rope_scaling", "rope_parameters") if part.settings.get(key)), None)
    settings = part.settings.get(name) if name is not None else None
    if not isinstance(settings, dict):
        return
    listed = part.settings.get("layer_types")
    labels = {
        *part.config_class.rope.get("labels", ()),
        *(str(label) for label in (listed if isinstance(listed, list) else ())),
    }
    kinds = [key for key in settings if key in labels]
    for kind in kinds:
        if isinstance(settings[kind], dict):
            yield f"{part.path}{name}.{kind}", settings[kind]
    if not kinds:
        yield f"{part.path}{name}", settings
