"""A consumer's own loader refuses the checkpoint, or does not fill the model with it.

## What it checks
With `--dry-load`: the installed transformers, vLLM or SGLang builds the model of config.json on the meta device, and its own
loader fills it from the names, dtypes and shapes of the stored tensors. It reads no value, and needs
no memory for weights and no GPU. In the engines ckptcheck records the place of every write into a parameter.

- An error: the consumer refuses the checkpoint, a stored shape is another than its own, nothing stored fills a parameter, or
  the stored tensors fill only a part of one, such as the keys of a fused qkv_proj.
- A warning: transformers has no place for a stored tensor, or SGLang leaves a bias at zero in every layer, where it starts.

## Why it matters
This is the answer of the loader itself, for every architecture that it knows, before a node with GPUs is started for it.
transformers fills a missing parameter with random numbers and lists it in a long warning. vLLM checks that the loader touches each
parameter of a model without quantization; it does not see a missing part of one, and checks nothing in a quantized model.
Most of SGLang's models fill what they find and say nothing about the rest. A parameter that an engine does not fill keeps the
previous content of its memory.

## How to fix
Export again under the names and shapes that the message asks for, or correct config.json.

## When it can be wrong
The answer is that of one version and of its build: a newer version may know what this one refuses, and on a CPU some quantized
models have no kernel. A consumer that cannot be asked, and a model that brings its own code, which ckptcheck does not run, make
the report incomplete, with the reason. A base model without the head of its next task is incomplete: use `--ignore DRY001`.
SGLang builds some models with biases that they do not have (Whisper, Llama 3.2 Vision): zeros are right there. Scales of
attention have defaults, so the rule accepts a checkpoint without them. It does not see values, nor ranks of tensor parallelism.

## Seen in
huggingface/transformers#6193, OpenGVLab/InternVL#666, vllm-project/vllm#15536, vllm-project/vllm#44788,
sgl-project/sglang#16235, sgl-project/sglang#29006
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_load_problems


@rule(
    "DRY001",
    "failed-dry-load",
    severity="error",
    when=lambda ckpt: bool(ckpt.options.dry_loaders) and not ckpt.is_adapter,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from find_load_problems(ckpt)
