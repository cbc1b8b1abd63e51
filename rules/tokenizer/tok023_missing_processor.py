"""A model that takes images or sounds has a tokenizer, but no processor.

## What it checks
Where `config.json` has a `vision_config` or an `audio_config` and a tokenizer lies beside it, so does one of
`preprocessor_config.json`, `processor_config.json` and `video_preprocessor_config.json`. Models of mistral-common (with a
tekken.json) have none.

## Why it matters
A trainer that saves model and tokenizer leaves the processor out. `AutoProcessor` then stops, and with it vLLM and SGLang, which
build their inputs by it.

## How to fix
`AutoProcessor.from_pretrained(base).save_pretrained(folder)`, or copy the files from the base model.

## When it can be wrong
Who uses the text model alone needs no processor: use `--ignore TOK023`.

## Seen in
hiyouga/EasyR1#48, 2U1/Qwen-VL-Series-Finetune#34, vllm-project/vllm#6934
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.template_files import PROCESSORS
from ckptcheck.checkpoint.views import TokenizedCheckpoint

INPUTS = {"vision_config": "images", "audio_config": "sounds"}
"""Key of config.json → what the model takes where it has one."""


@rule(
    "TOK023",
    "missing-processor",
    severity="warning",
    on="tokenizer",
    when=lambda ckpt: ckpt.config is not None and not ckpt.is_partial and not ckpt.is_adapter,
)
def check(ckpt: TokenizedCheckpoint) -> Iterator[Problem]:
    config = ckpt.config
    if config is None or "tekken.json" in ckpt.files or any(file in ckpt.files for file in PROCESSORS):
        return
    files = " or ".join(PROCESSORS[:2])
    for key, what in INPUTS.items():
        if isinstance(config.value.get(key), dict):
            yield Problem(
                f"the model takes {what}, and a tokenizer is here, but no processor ({files}): AutoProcessor, "
                "vLLM and SGLang stop",
                file=config.file,
                key=key,
                hint="save the processor too: AutoProcessor.from_pretrained(base).save_pretrained(folder)",
            )
            return
