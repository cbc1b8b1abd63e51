"""transformers refuses a value of the config.

## What it checks
Where transformers knows the `model_type`: every value of `config.json` and its nested configs has the type that the config
class declares, and lies within the class's bounds. Activation functions, dtypes and the model types of nested configs exist; the
dtype is one that torch creates parameters in.

## Why it matters
transformers 5 checks the types when it builds the config, and stops at the first wrong one: a number in quotes, a list, null
where the class has no use for it, true or false for a number. An unknown activation stops it when it builds the model. vLLM
and SGLang read the config through transformers.

## How to fix
Correct the value, or copy the config of the model this one was trained or converted from.

## When it can be wrong
transformers 4 did not check types, so a config that is older than transformers 5 may have worked with it. A config with its
own class (`auto_map`) is not checked. CFG002 reports sizes and counts that are no integers. Which combinations of values a class
refuses, only `--dry-load transformers` shows.

## Seen in
huggingface/transformers#44877 (a whole number for a multiplier), sgl-project/sglang#26674 (0 for 0.0),
huggingface/transformers#33155 (a dtype of 8 bits)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import COUNTS
from ckptcheck.checkpoint.config_class import find_nested_class, known_activations, known_dtypes
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.setting_text import Fault, name_type, write_value
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

ACTIVATION = re.compile(r"(^|_)(act|act_fn|activation|activation_function)$")
"""Names of fields that hold the name of an activation function."""
DTYPES = ("dtype", "torch_dtype")
"""Keys of the dtype; where both are there, transformers takes the first."""
DEFAULT_DTYPES = ("float", "float16", "float32", "float64", "half", "double", "bfloat16")
"""Dtypes in which torch creates parameters: `torch.set_default_dtype` refuses all others, 8-bit dtypes too."""


@rule(
    "CFG023",
    "refused-setting",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    found: dict[str, str] = {}
    for part in config.resolved.parts if config.resolved is not None else ():
        for path, fault in (*_iter_wrong_types(part), *_iter_unknown_names(part)):
            found.setdefault(path, fault)
    for path, fault in found.items():
        if path not in config.malformed_counts:
            yield Problem(
                f"{fault}; transformers refuses to load the checkpoint",
                file=config.file,
                key=path,
                hint="correct the value, or copy it from the model's own config",
            )


def _iter_wrong_types(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the fields whose value has a type or a size that the class refuses."""
    config_class = part.config_class
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        # transformers does not check values under an alias of a field; a model fails only where it computes with them.
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
            # NaN, which Python's JSON accepts, is within no bounds
            if (least is not None and not value >= least) or (most is not None and not value <= most):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                yield path, f"{path} is {write_value(value)}, but {config_class.name} takes only numbers {limits}"


def _iter_unknown_names(part: ResolvedPart) -> Iterator[Fault]:
    """Yield the activation functions, dtypes and model types of sub-configs that transformers does not know."""
    defaults = part.config_class.defaults
    read_dtype = next((key for key in DTYPES if part.settings.get(key) is not None), None)
    for key, value in part.settings.items():
        path = f"{part.path}{key}"
        if not isinstance(value, str):
            continue
        if ACTIVATION.search(key) and value not in known_activations() and defaults.get(key) in known_activations():
            yield path, f'{path} is "{value:.60}", and transformers has no such activation function'
        elif key in DTYPES and value not in known_dtypes():
            yield path, f'{path} is "{value:.60}", and torch has no such dtype'
        elif key == read_dtype and not part.path and value not in DEFAULT_DTYPES:
            yield path, f'{path} is "{value:.60}", and torch builds no model in that dtype'
    for name, nested in part.config_class.nested.items():
        settings = part.settings.get(name)
        if not isinstance(settings, dict):
            continue
        model_type = settings.get("model_type")
        is_name = model_type is None or isinstance(model_type, str)
        if not is_name or (nested.class_name is None and find_nested_class(nested, settings) is None):
            path = f"{part.path}{name}.model_type"
            yield path, f"{path} is {write_value(model_type)}, which transformers does not know"
