"""`architectures` and `model_type` belong to two different models.

## What it checks
The first of `architectures` is a class that transformers builds for this `model_type`, if transformers knows both.

## Why it matters
transformers builds what `model_type` says and does not look at `architectures`; vLLM and SGLang do the reverse. Trainer and engine
then compute two different models from one checkpoint, or the engine refuses it.

## How to fix
Take both from the config of the model this one was trained or converted from.

## When it can be wrong
Two families can be the same computation (a Mistral without sliding windows is a Llama), and then either name works: use
`--ignore CFG040`.

## Seen in
huggingface/transformers#45058 (omni-research/Tarsier2-Recap-7b was released with a wrong `model_type`). Tried with transformers
5.24, which takes the class of `model_type`, and read in vLLM 0.32 and SGLang 0.5.23, which look `architectures` up in their
registries.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_class import find_config_class, find_model_types
from ckptcheck.checkpoint.views import ConfiguredCheckpoint


@rule(
    "CFG040",
    "two-architectures",
    severity="warning",
    on="config",
    when=lambda ckpt: (
        not ckpt.is_partial and "auto_map" not in ckpt.config.value and ckpt.config.architecture is not None
    ),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    architecture, model_type = config.architecture, config.value.get("model_type")
    if architecture is None or not isinstance(model_type, str):
        return
    known = find_config_class(model_type)
    expected = find_model_types(architecture)
    # The parts of composite models have types of their own: mllama and mllama_text_model.
    is_related = any(other in _list_parts(model_type) or model_type in _list_parts(other) for other in expected)
    if known is not None and known.models and expected and not is_related:
        named = [other for other in expected if architecture.lower().startswith(other.replace("_", ""))]
        yield Problem(
            f"architectures names {architecture}, which is of model_type {(named or expected)[0]}, but model_type is "
            f"{model_type}: vLLM and SGLang go by the first, transformers by the second",
            file=config.file,
            key="architectures",
            hint="take both from the config of the model this one was made from",
        )


def _list_parts(model_type: str) -> frozenset[str]:
    """Return the model types in the default config of one type, at any depth, with the type itself."""
    known, waiting = {model_type}, [model_type]
    while waiting:
        config_class = find_config_class(waiting.pop())
        parts = config_class.nested.values() if config_class is not None else ()
        waiting += (new := {part.model_type for part in parts} - known)
        known |= new
    return frozenset(known)
