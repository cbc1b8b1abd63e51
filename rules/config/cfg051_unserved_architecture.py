"""`architectures` does not name the class that the checkpoint was saved from.

## What it checks
For a `model_type` of transformers without code of its own (`auto_map`):

- The name is not that of one of its classes behind a wrapper's word: `FSDPLlamaForCausalLM`.
- A checkpoint with an output head names a class, and one that has a head: not `Qwen2VLModel`.

## Why it matters
transformers chooses the class by `model_type` and the auto class, so the trainer loads the checkpoint. vLLM and SGLang choose it by
`architectures`: vLLM 0.32 stops at a name that it does not know, and takes the class without a head where there is no name, so that
it serves embeddings and no completions. SGLang 0.5.23 stops in both cases.

## How to fix
Write the name of the class into `architectures`, such as `["LlamaForCausalLM"]`.

## When it can be wrong
A checkpoint that only transformers reads loses nothing: use `--ignore CFG051`.

## Seen in
huggingface/transformers#40750 and NovaSky-AI/SkyRL#97 (FSDP's class), instructlab/training#128 (no name), unslothai/unsloth#2070
and vllm-project/vllm#15411 (the class without a head)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_class import find_config_class
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

LANGUAGE_MODELS = ("ForConditionalGeneration", "ForCausalLM")
"""How classes end that write text; a composite one stands before the one of its text model."""


@rule(
    "CFG051",
    "unserved-architecture",
    severity="warning",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.readable and "auto_map" not in ckpt.config.value,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, named = ckpt.config, ckpt.config.architecture
    model_type = config.value.get("model_type")
    facts = find_config_class(model_type) if isinstance(model_type, str) else None
    if facts is None:
        return
    wrapped = [name for name in facts.models if named is not None and named.endswith(name) and named != name]
    if wrapped:
        yield Problem(
            f"architectures names {named}, a wrapper of {wrapped[0]}: vLLM and SGLang know no such class and stop",
            file=config.file,
            key="architectures",
            severity="error",
            hint=f'write ["{wrapped[0]}"]',
        )
    texts = [name for end in LANGUAGE_MODELS for name in facts.models if name.endswith(end)]
    if texts and ckpt.components.lm_head and (named is None or (named in facts.models and named.endswith("Model"))):
        said = (
            "architectures is missing"
            if named is None
            else f"architectures names {named}, a class without an output head"
        )
        yield Problem(
            f"{said}, but {ckpt.components.lm_head} is stored: vLLM and SGLang serve embeddings or stop, and never write text",
            file=config.file,
            key="architectures",
            hint=f'write ["{texts[0]}"] if this is the class that was trained',
        )
