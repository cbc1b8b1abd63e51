"""transformers refuses a value of the config.

## What it checks
Where transformers knows the `model_type`: every value of `config.json` and its nested configs has the type that the config
class declares, and lies within the class's bounds. Activation functions, dtypes, attention implementations and the model types of
nested configs exist; the dtype is one that torch creates parameters in; `id2label` is an object with integers for keys, and has
two labels where one of several is chosen. In `generation_config.json` `pad_token_id` is an integer, `max_new_tokens` above 0,
`early_stopping`, `cache_implementation` and `watermarking_config` what transformers knows, and `num_return_sequences` no more
than sampling or beams allow.

## Why it matters
transformers 5 checks the types when it builds the config, and stops at the first wrong one: a number in quotes, a list, null
where the class has no use for it, true or false for a number. An unknown activation stops it when it builds the model. vLLM
and SGLang read the config through transformers.

## How to fix
Correct the value, or copy the config of the model this one was trained or converted from.

## When it can be wrong
transformers 4 did not check types, so a config that is older than transformers 5 may have worked with it. A config with its
own class (`auto_map`) is not checked. CFG002 reports sizes and counts that are no integers.

## Seen in
huggingface/transformers#44877 (a whole number for a multiplier), sgl-project/sglang#26674 (0 for 0.0)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config_refusals import (
    NO_ACTIVATION,
    iter_unknown_names,
    iter_wrong_common_types,
    iter_wrong_labels,
    iter_wrong_types,
)
from ckptcheck.checkpoint.layer_settings import iter_wrong_layer_settings
from ckptcheck.checkpoint.setting_text import write_value
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.consumers.generation_settings import list_refused_at_load


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
    table = WeightsTable.of(config)
    for part in config.resolved.parts if config.resolved is not None else ():
        for path, fault in (
            *iter_wrong_types(part),
            *iter_wrong_common_types(part),
            *iter_wrong_layer_settings(part),
            *iter_wrong_labels(part),
            *iter_unknown_names(part),
        ):
            found.setdefault(path, fault)
    generation, classes = ckpt.generation_config, config.resolved.top.config_class.models if config.resolved else ()
    padding = generation.value.get("pad_token_id") if generation is not None else None
    if generation is not None and padding is not None and type(padding) is not int and any(map(_generates, classes)):
        yield Problem(
            f"pad_token_id is {write_value(padding)}, but transformers takes only an integer or null; transformers refuses to "
            "load the checkpoint",
            file=generation.file,
            key="pad_token_id",
            hint="correct the value, or copy it from the model's own generation_config.json",
        )
    refused = list_refused_at_load(generation.value) if generation is not None and any(map(_generates, classes)) else ()
    for key, reason in refused:
        yield Problem(
            f"{key} {reason}; transformers refuses to load the checkpoint",
            file="generation_config.json",
            key=key,
            hint="correct the value, or copy it from the model's own generation_config.json",
        )
    for path, fault in found.items():
        # Some models keep the name of an activation and compute with another (gpt-oss).
        is_tower = path.startswith(("vision_config.", "audio_config."))
        is_unread = table is not None and path not in table.refused.checked_activations and not is_tower
        if path in config.malformed_counts or (is_unread and fault.endswith(NO_ACTIVATION)):
            continue
        yield Problem(
            f"{fault}; transformers refuses to load the checkpoint",
            file=config.file,
            key=path,
            hint="correct the value, or copy it from the model's own config",
        )


def _generates(model_class: str) -> bool:
    """Whether a model class writes text, and reads generation_config.json for it."""
    return model_class.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
