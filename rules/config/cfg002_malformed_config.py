"""The config cannot be read, or a number in it has another type.

## What it checks
`config.json` (or `adapter_config.json`), `generation_config.json`, `preprocessor_config.json`, `processor_config.json` and what
the tools of a quantization write beside them (`quantize_config.json`, `quant_config.json`, `hf_quant_config.json`) are JSON
objects. Sizes and counts of the config (layers, heads, hidden and intermediate size, vocabulary, experts) are non-negative
integers, lists of them, or null. The nested config of the language model is checked too. Where transformers knows the
`model_type`, keys that neither its class nor an engine reads do not count.

## Why it matters
transformers, vLLM and SGLang stop on a config that is no JSON object, `AutoProcessor` stops on such a processor config, and whoever
looks for the quantization in a file of its own finds none. Without generation_config.json all go on, and lose its ends and its
sampling settings. A quoted number passes the parser and fails later, or is compared as text. A whole number with a point stops
them too: of 182 classes of language models, transformers 5.24 refuses `8.0` for every size and count that the class reads ("must
be int", or torch's "tuple of ints"), as 4.57 does when it builds the model. A `head_dim` that the class does not know goes on to
SGLang's cache. With multi-head latent attention it only sets angles, and `64.0` is taken for 64.

## How to fix
Write the file again with the library that made it, or correct the value.

## When it can be wrong
A model with its own code (`auto_map`) may write -1, a fraction or a word where its code computes the number: use `--ignore
CFG002` if only that code reads it. The rule checks only the settings named above, and only their type and sign. CFG003 and
CFG012 compare the numbers with the tensors, CFG023 the types of all settings with those that transformers accepts.

## Seen in
HM-RunningHub/ComfyUI_RH_FramePack#14 (a preprocessor_config.json), hao-ai-lab/FastVideo#212
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.declarations import SIDE_FILES

FILES = {
    "config.json", "generation_config.json", "adapter_config.json", "preprocessor_config.json", "processor_config.json",
    *SIDE_FILES,
}  # fmt: skip


@rule(
    "CFG002",
    "malformed-config",
    severity="error",
    when=lambda ckpt: not ckpt.is_single_shard and (ckpt.config is not None or ckpt.adapter is not None),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("not-json", "not-object", "byte-order-mark", files=FILES):
        yield structs.replace(
            problem, message=f"the config cannot be read: {problem.message}", hint="write the file again"
        )
    if ckpt.config is None:
        return
    listed = ckpt.config.value.get("architectures")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
        yield Problem(
            f"architectures is {listed!r:.60}, but it must be a list of names",
            file=ckpt.config.file,
            key="architectures",
            hint='write ["…ForCausalLM"]',
        )
    for path, value in ckpt.config.malformed_counts.items():
        yield Problem(
            f"{path.rpartition('.')[2]} is {value!r:.60}, but it must be a non-negative integer",
            file=ckpt.config.file,
            key=path,
            hint="correct the value",
        )
