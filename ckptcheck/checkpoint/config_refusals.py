"""What transformers refuses in a config.json: values of the wrong type, and values that do not go together.

Each function yields what one kind of check finds in one part of a config, as its class decides it when it is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from ckptcheck.checkpoint.config import COUNTS, EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.config_class import (
    find_nested_class,
    is_instance,
    known_activations,
    known_dtypes,
    known_layer_types,
    required_rope_keys,
)
from ckptcheck.checkpoint.config_demands import UnknownValueError, is_refused, list_settings
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, ResolvedPart, Setting
from ckptcheck.checkpoint.weights_table import RefusedKind, WeightsTable

ACTIVATION = re.compile(r"(^|_)(act|act_fn|activation|activation_function)$")
"""Names of fields that hold the name of an activation function."""
DIVISOR = re.compile(r"(\w+) % (\w+)(?: != 0)?")
"""What a class demands of two sizes of which the second divides the first."""
INTEGER = re.compile(r"\s*[+-]?\d+(_\d+)*\s*")
"""Texts that Python turns into integers."""
NORM_EPSILON = re.compile(r"(rms_norm|layer_?norm|norm)_eps(ilon)?")
"""Names of fields that hold the epsilon of the norms."""
NO_ACTIVATION = "and transformers has no such activation function"
"""How a fault about an activation function ends."""
ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""The implementations of attention that transformers has itself."""
DTYPES = ("dtype", "torch_dtype")
NUMBERS = frozenset(
    ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
     "partial_rotary_factor")
)  # fmt: skip
"""Keys of rotary embeddings that transformers computes with."""
TEXT_PARTS = ("decoder", "generator", "text_config")
"""Keys that transformers takes for the config of the language model wherever they are there."""
COMMON_TYPES = {"is_encoder_decoder": "bool", "output_hidden_states": "bool | None", "chunk_size_feed_forward": "int"}
"""Field that every class has → its type."""
BETAS = ("beta_fast", "beta_slow")
PARTIAL = "partial_rotary_factor"
LEGACY_ROPE_TYPES = ("mrope", "su", "axial", "deepseek_yarn")
"""Names that released configs have and that some classes translate."""
ALWAYS_SLIDING = ("mistral", "mixtral", "starcoder2")
"""Model types of which every layer attends through the window, if there is one."""
SIZES = (
    "hidden_size", "num_attention_heads", "vocab_size", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""Sizes of which a model needs at least one."""
Fault = tuple[str, str]
"""Where: the JSON path; and what is wrong there, up to what transformers does about it."""


def iter_wrong_types(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the fields whose value has a type or a size that the class refuses."""
    config_class = part.config_class
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        # transformers does not check what another name of a field says; a model stops only where it counts with it.
        is_checked = key in config_class.types or key in COUNTS
        if is_checked and not config_class.accepts(key, value):
            yield (
                path,
                f"{path} is {write_value(value)}, but {config_class.name} takes only {name_type(config_class.type_of(key) or '')}",
            )
        elif key in config_class.nested and value is not None and not isinstance(value, dict):
            yield path, f"{path} is {write_value(value)}, but {config_class.name} takes only an object"
        elif key in config_class.bounds and isinstance(value, (int, float)):
            least, most = config_class.bounds[key]
            if (least is not None and value < least) or (most is not None and value > most):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                yield path, f"{path} is {value}, but {config_class.name} takes only numbers {limits}"


def iter_wrong_common_types(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the fields of every class whose value has a type that transformers refuses."""
    for key, hint in COMMON_TYPES.items():
        if key in part.settings and not is_instance(part.settings[key], hint):
            path = f"{part.path}{key}"
            yield path, f"{path} is {write_value(part.settings[key])}, but every config takes only {name_type(hint)}"


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


def iter_wrong_labels(part: ResolvedPart) -> Iterator[Fault]:
    """Yield labels whose numbers are none: every class turns the keys of ``id2label`` into integers."""
    labels = part.settings.get("id2label")
    for key in labels if isinstance(labels, dict) else ():
        if not INTEGER.fullmatch(key):
            path = f"{part.path}id2label"
            yield path, f"{path} has the key {write_value(key)}, which is no integer"
            return


def iter_unknown_names(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the activation functions, dtypes and model types of sub-configs that transformers does not know."""
    defaults = part.config_class.defaults
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        if not part.path and key in DTYPES and value is not None and not isinstance(value, (str, dict)):
            yield path, f"{path} is {write_value(value)}, which names no dtype of torch"
        if key == "attn_implementation" and not _is_attention(value):
            yield path, f"{path} is {write_value(value)}, and transformers has no such attention"
        if not isinstance(value, str):
            continue
        if ACTIVATION.search(key) and value not in known_activations() and defaults.get(key) in known_activations():
            yield path, f'{path} is "{value:.60}", {NO_ACTIVATION}'
        elif key in DTYPES and value not in known_dtypes():
            yield path, f'{path} is "{value:.60}", and torch has no such dtype'
    for name in TEXT_PARTS:
        is_object = not part.path and isinstance(part.settings.get(name), dict)
        # RAG's class declares such fields, and builds both parts itself.
        if is_object and name not in part.config_class.nested and part.config_class.type_of(name) is None:
            yield name, f"{name} is an object, but {part.config_class.name} has no such sub-config"
    for name, nested in part.config_class.nested.items():
        settings = part.settings.get(name)
        model_type = settings.get("model_type") if isinstance(settings, dict) else None
        is_name = model_type is None or isinstance(model_type, str)
        if isinstance(settings, dict) and (
            not is_name or (nested.class_name is None and find_nested_class(nested, settings) is None)
        ):
            path = f"{part.path}{name}.model_type"
            yield path, f"{path} is {write_value(settings.get('model_type'))}, which transformers does not know"


def _is_attention(value: Any) -> bool:
    """Whether transformers takes this for an attention: one of its own, a kernel ``owner/name``, or one for each part."""
    if value is None or isinstance(value, dict):
        return True
    return isinstance(value, str) and ("/" in value or value.removeprefix("paged|") in ATTENTIONS)


def iter_impossible_sizes(part: ResolvedPart) -> Iterator[Fault]:
    """Yield sizes of zero or less, and more chosen groups of experts than there are."""
    for name in SIZES:
        setting = part.find(name)
        if name == "head_dim" and part.find("kv_lora_rank") is not None:
            continue  # latent attention has widths of its own: here it is that of the rotated part, which may be none (GLM-5)
        if setting is not None and setting.source == "config" and _is_int(setting.value) and setting.value < 1:
            yield setting.key_path, f"{setting.key_path} is {setting.value}, but a model needs at least 1"
    chosen, groups = part.find("topk_group"), part.find("n_group")
    if (
        chosen is not None
        and groups is not None
        and "config" in (chosen.source, groups.source)
        and _is_int(chosen.value)
        and _is_int(groups.value)
        and chosen.value > groups.value > 0
    ):
        yield chosen.key_path, f"{describe(chosen)}, but the experts have fewer groups: {describe(groups)}"


def iter_broken_demands(part: ResolvedPart, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield settings that the class of the config refuses together; defaults alone are the class's own."""

    def find(path: str) -> Setting | None:
        found = resolved.at(f"{part.path}{path}") if "." in path else part.find(path)
        if (
            found is None and path in part.settings
        ):  # a class may keep what it does not declare (GPT-Neo's attention_layers)
            return Setting(path, part.settings[path], "config", part.path)
        return found

    def value_of(path: str) -> Any:
        if (setting := find(path)) is None:
            raise UnknownValueError
        return setting.value

    for expression in part.config_class.demands:
        if (pair := DIVISOR.fullmatch(expression)) is not None:
            yield from _check_divisor(find(pair[1]), find(pair[2]))
            continue
        settings = [setting for path in list_settings(expression) if (setting := find(path)) is not None]
        given = [setting for setting in settings if setting.source == "config"]
        if given and is_refused(expression, value_of):
            said = "; ".join(map(describe, settings))
            yield given[0].key_path, f"{said}, and {part.config_class.name} refuses a config where {expression}"


def _check_divisor(whole: Setting | None, divisor: Setting | None) -> Iterator[Fault]:
    """Yield a pair of sizes of which the second does not divide the first; a pair of defaults is the class's own."""
    if whole is None or divisor is None or not _is_int(whole.value) or not _is_int(divisor.value):
        return
    given = "config" in (whole.source, divisor.source)
    if given and divisor.value > 0 and whole.value > 0 and whole.value % divisor.value:
        yield divisor.key_path, f"{describe(whole)}, which is no multiple of {divisor.value:,} ({describe(divisor)})"


def iter_empty_windows(part: ResolvedPart) -> Iterator[Fault]:
    """Yield a window without a token, or none at all, where layers are declared that attend through one."""
    window, listed = part.find("sliding_window"), part.settings.get("layer_types")
    slides = isinstance(listed, list) and "sliding_attention" in listed
    always = part.config_class.model_type in ALWAYS_SLIDING
    if window is None or window.source != "config" or not (slides or always):
        return
    if (window.value is None and slides) or (_is_int(window.value) and window.value < 1):
        yield window.key_path, f"{describe(window)}, but layers attend through a sliding window"


def iter_refused_by_model(table: WeightsTable, resolved: ResolvedConfig) -> Iterator[Fault]:
    """Yield what the class of the model refuses when it is built, although the class of the config accepts it."""
    for whole_path, divisor_path in table.divisors:
        yield from _check_divisor(resolved.at(whole_path), resolved.at(divisor_path))
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
        if own is None or width is None or heads is None or not _is_int(width.value) or not _is_int(heads.value):
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
        and _is_int(padding.value)
        and _is_int(rows.value)
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
        if own is None or other is None or not _is_int(own.value) or not _is_int(other.value):
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
    if setting is None or not given or setting.path in resolved.other_parts or not _is_int(setting.value):
        return None
    is_grouped = setting.name == "n_group" and resolved.text.settings.get("model_type") in GROUPED_ROUTERS
    if setting.name in EXPERTS_PER_TOKEN or is_grouped:
        return None
    numbers = [each.value for each in limits if each is not None and _is_int(each.value)]
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


def iter_wrong_layer_lists(part: ResolvedPart) -> Iterator[Fault]:
    """Yield lists of layer kinds with an entry that transformers does not know, or of another length than the model."""
    if not part.config_class.checks_layer_lists:
        return
    depth = part.find("num_hidden_layers")
    for name, known in known_layer_types().items():
        listed = part.settings.get(name)
        has_kinds = part.settings.get("layer_types") is not None or part.config_class.has_layer_types
        if not has_kinds or not isinstance(listed, list) or depth is None:
            continue
        path = f"{part.path}{name}"
        unknown = [entry for entry in listed if not isinstance(entry, str) or entry not in known]
        if unknown:
            yield path, f"{path} has the entry {write_value(unknown[0])}, and transformers has no such layer"
        elif _is_int(depth.value) and depth.value != len(listed):
            yield path, f"{path} has {len(listed)} entries, but {describe(depth)}"


def iter_wrong_rope(part: ResolvedPart) -> Iterator[Fault]:
    """Yield rotary embeddings that lack a key which their type needs, or whose numbers are none."""
    yield from _check_rotary_width(part)
    rope = part.settings.get("rope_parameters")
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
    filled = {"rope_theta", "original_max_position_embeddings"} if fills else frozenset[str]()
    for path, parameters in iter_rope(part):
        # Classes with one rotary embedding for each kind of layer translate the words of transformers 4 themselves.
        old = "default" if part.config_class.rope.get("labels") else parameters.get("type", "default")
        kind = parameters.get("rope_type", old)
        own = (part.config_class.rope.get("default") or {}).get("rope_type")
        is_tower = "vision" in part.path or "audio" in part.path
        if part.config_class.rope and (
            kind is None or (is_tower and kind not in (*required_rope_keys(), *LEGACY_ROPE_TYPES, own))
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
    if not isinstance(settings, dict):
        return
    scaling = part.settings.get("rope_scaling")
    if (
        needed.get("flat")
        and _has_kinds(settings)
        and isinstance(scaling, dict)
        and scaling
        and not _has_kinds(scaling)
    ):
        path = f"{part.path}rope_scaling"
        yield path, f"{path} takes the place of rope_parameters, and has nothing for {needed['flat'][0]}"
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
    if value is None and hidden is not None and heads is not None and _is_int(hidden.value) and _is_int(heads.value):
        value, source = hidden.value // heads.value if heads.value > 0 else None, heads
    partial = [
        part.settings.get("partial_rotary_factor"),
        *(found.get("partial_rotary_factor") for _, found in iter_rope(part)),
    ]
    if (
        source is not None
        and _is_int(value)
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


def describe(setting: Setting) -> str:
    """Return what a finding says about a setting: its value, and whether config.json gives it."""
    value = f"{setting.value:,}" if _is_int(setting.value) else write_value(setting.value)
    if setting.source == "config":
        return f"{setting.key_path} is {value}"
    return f"config.json has no {setting.key_path}, so transformers takes its default of {value}"


def write_value(value: Any) -> str:
    """Return a JSON value as a finding shows it, cut where it is long."""
    text = {True: "true", False: "false", None: "null"}.get(value) if value is None or isinstance(value, bool) else None
    if text is None:
        text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def name_type(hint: str) -> str:
    """Return a type in words: ``int | None`` is "an integer or null"."""
    words = {
        "int": "an integer",
        "float": "a number with a decimal point",
        "bool": "true or false",
        "str": "a text",
        "dict": "an object",
        "list": "a list",
        "None": "null",
        "tuple": "",
        "object": "",
    }
    parts = [part.strip() for part in re.sub(r"\[[^|]*\|[^]]*\]", "[]", hint).split(" | ")]
    named = [words.get(part, "a list" if part.startswith(("list", "Sequence")) else part) for part in parts]
    if {"int", "float"} <= set(parts):
        named = ["a number", *(name for name, part in zip(named, parts, strict=True) if part not in ("int", "float"))]
    kept = [name for name in dict.fromkeys(named) if name]
    return " or ".join(kept)


def _is_int(value: Any) -> TypeGuard[int]:
    return type(value) is int
