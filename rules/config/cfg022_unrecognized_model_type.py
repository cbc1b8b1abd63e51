"""The config does not say which model it is of, or names one that transformers does not have.

## What it checks
`model_type` in `config.json` is one of those that transformers knows. A config with `auto_map` brings its own class and is
not checked. The rule is skipped, with the reason, where vLLM or SGLang registers the type itself, where `architectures` names a
class that is not transformers' own, and where a newer transformers than the learned one wrote the config. A config with the sizes
of a model of transformers (`hidden_size` and `num_hidden_layers`), no `architectures` and no known `model_type` is a warning:
another program may read it.

## Why it matters
transformers chooses the config class by `model_type` alone: `AutoConfig` and every `AutoModel` stop without it. vLLM and
SGLang read the config through transformers and stop too.

## How to fix
Copy `model_type` from the config of the model this one was trained or converted from.

## When it can be wrong
An older or a newer transformers than the one that the types were learned from may know other types. A package that registers
its own type (`AutoConfig.register`) under an architecture of transformers fires: use `--ignore CFG022`.

## Seen in
deepseek-ai/DeepSeek-VL2#125, declare-lab/Emma-X#1: "does not recognize this architecture"
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.config_class import find_config_class, is_model_class, learned_version
from ckptcheck.checkpoint.setting_text import write_value
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.consumers.model_types import find_registering_engine

SIZES = {"hidden_size", "num_hidden_layers"}
"""Keys that nearly every config of transformers has."""


@rule(
    "CFG022",
    "unrecognized-model-type",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.readable and "auto_map" not in ckpt.config.value,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    value = config.value.get("model_type")
    if isinstance(value, str) and find_config_class(value) is not None:
        return
    if isinstance(value, str) and (engine := find_registering_engine(value)) is not None:
        raise Skip(f"transformers does not know the model_type {value}, which {engine} registers itself")
    is_text = value is None or isinstance(value, str)
    if is_text and _version(config.value.get("transformers_version")) > _version(learned_version()):
        raise Skip(f"a newer transformers than {learned_version()} wrote the config, and may know more models")
    if is_text and config.architecture is None and config.value.keys() >= SIZES:
        named = (
            "no model_type"
            if value is None
            else f"the model_type {write_value(value)}, which transformers does not know,"
        )
        yield Problem(
            f"it has {named} and no architectures, so transformers does not know what model it is, and refuses to load it",
            file=config.file,
            key="model_type",
            severity="warning",
            hint="copy both from the config of a model of this architecture",
        )
        return
    if is_text and (config.architecture is None or not is_model_class(config.architecture)):
        raise Skip(f"architectures names no class of transformers {learned_version()}: the model's own code decides")
    named = (
        f"model_type is {write_value(value)}, which" if "model_type" in config.value else "there is no model_type, so"
    )
    yield Problem(
        f"{named} transformers {'does not know, so it ' if 'model_type' in config.value else ''}refuses to load the checkpoint",
        file=config.file,
        key="model_type",
        hint="copy it from the config of "
        + (f"a {config.architecture}" if is_text else "the model this one was trained or converted from"),
    )


def _version(text: object) -> tuple[int, ...]:
    """Return major and minor version; () if there is none."""
    found = re.match(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found.groups()) if found else ()
