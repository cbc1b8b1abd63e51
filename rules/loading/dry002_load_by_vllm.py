"""vLLM refuses the checkpoint, or fills a parameter only in part or not at all.

## What it checks
With `--dry-load vllm`: the vLLM of that environment builds the model of config.json on the meta device, on one rank, and its
own loader fills it from the names, dtypes and shapes of the stored tensors. No value is read, no memory is taken for weights,
and no GPU is needed. Every write into a parameter is recorded by its place. An error: vLLM refuses the checkpoint, nothing is
written into a parameter, or the stored tensors fill only a part of one, such as the keys of a fused qkv_proj.

## Why it matters
This is the answer of the loader itself, before a node with GPUs is started for it. vLLM checks that each parameter of a model
without quantization was touched. It does not see that a part of one was not, and of a quantized model it checks nothing: what
was not filled holds whatever its memory held.

## How to fix
Export again under the names and shapes that vLLM looks for, or correct config.json.

## When it can be wrong
The answer is that of one version and of its build: on a CPU some quantized models have no kernel. Then the rule is skipped,
with the reason, as it is for models that bring their own code, which is not run. Scales of attention are not missed, since vLLM
has a default for them. Values are not seen, and neither are ranks of tensor parallelism.

## Seen in
vllm-project/vllm#15536, vllm-project/vllm#44788
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_load_problems, has_dry_loader


@rule("DRY002", "load-by-vllm", severity="error", when=lambda ckpt: has_dry_loader(ckpt, "vllm"))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from find_load_problems(ckpt, "vllm")
