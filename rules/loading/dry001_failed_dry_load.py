"""A consumer's own loader refuses the checkpoint, or does not fill the model with it.

## What it checks
With `--dry-load`: the installed transformers, vLLM or SGLang builds the model of config.json on the meta device, and its own
loader fills it from the names, dtypes and shapes of the stored tensors. No value is read, no memory is taken for weights, and
no GPU is needed. In the engines every write into a parameter is recorded by its place.

- An error: the consumer refuses the checkpoint, a stored shape is another than its own, nothing stored fills a parameter, or
  the stored tensors fill only a part of one, such as the keys of a fused qkv_proj.
- A warning: transformers has no place for a stored tensor, or SGLang leaves a bias at zero in every layer, where it starts.

## Why it matters
This is the answer of the loader itself, for every architecture that it knows, before a node with GPUs is started for it.
transformers fills a missing parameter with random numbers and lists it in a long warning. vLLM checks that each parameter of a
model without quantization was touched; it does not see that a part of one was not, and of a quantized model it checks nothing.
Most of SGLang's models fill what they find and say nothing about the rest. What an engine did not fill holds whatever its
memory held.

## How to fix
Export again under the names and shapes that the message asks for, or correct config.json.

## When it can be wrong
The answer is that of one version and of its build: a newer version may know what this one refuses, and on a CPU some quantized
models have no kernel. A consumer that cannot be asked is named with the reason, and so is a model that brings its own code,
which is not run. A base model that is to be trained for another task has no head yet: use `--ignore DRY001`. SGLang builds some
models with biases that they do not have (Whisper, Llama 3.2 Vision): zeros are right there. Scales of attention have defaults
and are not missed. Values are not seen, and neither are ranks of tensor parallelism.

## Seen in
huggingface/transformers#6193, OpenGVLab/InternVL#666, vllm-project/vllm#15536, vllm-project/vllm#44788,
sgl-project/sglang#16235, sgl-project/sglang#29006
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_load_problems


@rule("DRY001", "failed-dry-load", severity="error", when=lambda ckpt: bool(ckpt.options.dry_loaders))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from find_load_problems(ckpt)
