"""What transformers refuses in a config.json: values of the wrong type, and values that do not go together.

Each function yields what one kind of check finds in one part of a config, as its class decides it when it is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ckptcheck.checkpoint.config import COUNTS
from ckptcheck.checkpoint.config_class import (
    find_nested_class,
    is_instance,
    known_activations,
    known_dtypes,
    known_layer_types,
)
from ckptcheck.checkpoint.config_demands import UnknownValueError, choose_branches, is_refused, list_settings
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, ResolvedPart, Setting
from ckptcheck.checkpoint.setting_text import INTEGER, Fault, describe, is_int, name_type, write_value

ACTIVATION = re.compile(r"(^|_)(act|act_fn|activation|activation_function)$")
"""Names of fields that hold the name of an activation function."""
DIVISOR = re.compile(r"(\w+) % (\w+)(?: != 0)?")
"""What a class demands of two sizes of which the second divides the first."""
NORM_EPSILON = re.compile(r"(rms_norm|layer_?norm|norm)_eps(ilon)?")
"""Names of fields that hold the epsilon of the norms."""
NO_ACTIVATION = "and transformers has no such activation function"
"""How a fault about an activation function ends."""
ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""The implementations of attention that transformers has itself."""
DTYPES = ("dtype", "torch_dtype")
DEFAULT_DTYPES = ("float", "float16", "float32", "float64", "half", "double", "bfloat16")
"""Dtypes in which torch creates parameters: `torch.set_default_dtype` refuses all others, those of 8 bits too."""
AUTO = "auto"
"""The word that stands for a number which a class computes itself."""
TEXT_PARTS = ("decoder", "generator", "text_config")
"""Keys that transformers takes for the config of the language model wherever they are there."""
COMMON_TYPES = {"is_encoder_decoder": "bool", "output_hidden_states": "bool | None", "chunk_size_feed_forward": "int"}
"""Field that every class has → its type."""
COMPUTED = ("is_heterogeneous", "per_layer_attributes", "use_return_dict")
"""Names that every class computes, and refuses to be given (properties of ``PreTrainedConfig`` without a setter)."""
WINDOWS = {
    "sliding_window": ("sliding_attention", ("mistral", "mixtral", "starcoder2"), "through a sliding window"),
    "attention_chunk_size": ("chunked_attention", ("llama4_text",), "within chunks"),
}
"""Setting → the kind of layers that attend within so many tokens, the model types of which layers always do, and how."""
SIZES = (
    "hidden_size", "num_attention_heads", "vocab_size", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""Sizes of which a model needs at least one."""


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
            # NaN, which JSON of Python may hold, is within no bounds
            if (least is not None and not value >= least) or (most is not None and not value <= most):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                yield path, f"{path} is {write_value(value)}, but {config_class.name} takes only numbers {limits}"


def iter_wrong_common_types(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the fields of every class whose value has a type that transformers refuses, and what it lets nobody set."""
    for key in COMPUTED:
        if key in part.settings:
            yield f"{part.path}{key}", f"{part.path}{key} is given, but every class computes it and lets nobody set it"
    for key, hint in COMMON_TYPES.items():
        if key in part.settings and not is_instance(part.settings[key], hint):
            path = f"{part.path}{key}"
            yield path, f"{path} is {write_value(part.settings[key])}, but every config takes only {name_type(hint)}"


def iter_wrong_labels(part: ResolvedPart) -> Iterator[Fault]:
    """Yield labels that are no object, or whose numbers are none, and a choice between fewer than two of them.

    Every class reads ``id2label`` so, whatever its model is for (``PreTrainedConfig.__post_init__``).
    """
    labels, path = part.settings.get("id2label"), f"{part.path}id2label"
    if labels is not None and not isinstance(labels, dict):
        yield path, f"{path} is {write_value(labels)}, but it must be an object: a label for each number"
        return
    number = part.settings.get("num_labels") if labels is None else len(labels)
    if number == 1 and part.settings.get("problem_type") == "single_label_classification":
        path = f"{part.path}problem_type"
        yield path, f'{path} is "single_label_classification", but there is one label only'
    for key in labels or ():
        if not INTEGER.fullmatch(key):
            yield f"{part.path}id2label", f"{part.path}id2label has the key {write_value(key)}, which is no integer"
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
        elif key in DTYPES and not part.path and value not in DEFAULT_DTYPES and key == _find_dtype_key(part):
            yield path, f'{path} is "{value:.60}", and torch builds no model in that dtype'
        elif value != AUTO and part.config_class.is_computed_from(key, AUTO):
            yield path, f'{path} is "{value:.60}", but {part.config_class.name} takes only a number or "{AUTO}"'
    for name in TEXT_PARTS:
        is_object = isinstance(part.settings.get(name), dict)
        # RAG's class declares such fields, and builds both parts itself.
        if is_object and name not in part.config_class.nested and part.config_class.type_of(name) is None:
            path = f"{part.path}{name}"
            yield path, f"{path} is an object, but {part.config_class.name} has no such sub-config"
    for name, nested in part.config_class.nested.items():
        settings = part.settings.get(name)
        model_type = settings.get("model_type") if isinstance(settings, dict) else None
        is_name = model_type is None or isinstance(model_type, str)
        if isinstance(settings, dict) and (
            not is_name or (nested.class_name is None and find_nested_class(nested, settings) is None)
        ):
            path = f"{part.path}{name}.model_type"
            yield path, f"{path} is {write_value(settings.get('model_type'))}, which transformers does not know"


def _find_dtype_key(part: ResolvedPart) -> str:
    """Return the key from which transformers takes the dtype: the new one where both are there."""
    return next((key for key in DTYPES if part.settings.get(key) is not None), DTYPES[0])


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
        if setting is not None and setting.source == "config" and is_int(setting.value) and setting.value < 1:
            yield setting.key_path, f"{setting.key_path} is {setting.value}, but a model needs at least 1"
    chosen, groups = part.find("topk_group"), part.find("n_group")
    if (
        chosen is not None
        and groups is not None
        and "config" in (chosen.source, groups.source)
        and is_int(chosen.value)
        and is_int(groups.value)
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
            yield from check_divisor(find(pair[1]), find(pair[2]))
            continue
        settings = [setting for path in list_settings(expression) if (setting := find(path)) is not None]
        given = [setting for setting in settings if setting.source == "config"]
        if given and is_refused(expression, value_of):
            chosen = choose_branches(expression, value_of)
            found = [setting for path in list_settings(chosen) if (setting := find(path)) is not None]
            named = [setting for setting in found if not isinstance(setting.value, dict)] or found
            said = "; ".join(map(describe, named))
            key = next((setting for setting in named if setting in given), given[0]).key_path
            yield key, f"{said}, and {part.config_class.name} refuses a config where {chosen}"


def check_divisor(whole: Setting | None, divisor: Setting | None) -> Iterator[Fault]:
    """Yield a pair of sizes of which the second does not divide the first; a pair of defaults is the class's own."""
    if whole is None or divisor is None or not is_int(whole.value) or not is_int(divisor.value):
        return
    given = "config" in (whole.source, divisor.source)
    if given and divisor.value > 0 and whole.value > 0 and whole.value % divisor.value:
        yield divisor.key_path, f"{describe(whole)}, which is no multiple of {divisor.value:,} ({describe(divisor)})"


def iter_empty_windows(part: ResolvedPart) -> Iterator[Fault]:
    """Yield a window or chunk without a token, or none at all, where layers are declared that attend within one."""
    listed = part.settings.get("layer_types")
    for name, (kind, always, how) in WINDOWS.items():
        window = part.find(name)
        is_declared = isinstance(listed, list) and kind in listed
        if window is None or window.source != "config" or not (is_declared or part.config_class.model_type in always):
            continue
        if (window.value is None and is_declared) or (is_int(window.value) and window.value < 1):
            yield window.key_path, f"{describe(window)}, but layers attend {how}"


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
        elif is_int(depth.value) and depth.value != len(listed):
            yield path, f"{path} has {len(listed)} entries, but {describe(depth)}"
