"""SGLang refuses the checkpoint, or fills a parameter only in part or not at all.

## What it checks
With `--dry-load sglang`: the SGLang of that environment builds the model of config.json on the meta device, on one rank, and
its own loader fills it from the names, dtypes and shapes of the stored tensors. No value is read, no memory is taken for
weights, and no GPU is needed. Every write into a parameter is recorded by its place. An error: SGLang refuses the checkpoint,
nothing is written into a parameter, or the stored tensors fill only a part of one, such as the keys of a fused qkv_proj. A
warning: SGLang leaves a bias at zero in every layer, where it starts.

## Why it matters
This is the answer of the loader itself, before a node with GPUs is started for it. Most of SGLang's models fill what they find
and say nothing about the rest: a parameter without a stored tensor holds whatever its memory held, and the server starts.

## How to fix
Export again under the names and shapes that SGLang looks for, or correct config.json.

## When it can be wrong
The answer is that of one version and of its build: on a CPU some models and quantizations are not there. Then the rule is
skipped, with the reason, as it is for models that bring their own code, which is not run. SGLang builds some models with
biases that they do not have (Whisper, Llama 3.2 Vision): zeros are right there, and the warning is to be ignored. Scales of
attention are not missed, since SGLang has a default for them. Values are not seen, and neither are ranks of tensor parallelism.

## Seen in
sgl-project/sglang#16235, sgl-project/sglang#29006
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_load_problems, has_dry_loader


@rule("DRY003", "load-by-sglang", severity="error", when=lambda ckpt: has_dry_loader(ckpt, "sglang"))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from find_load_problems(ckpt, "sglang")
