"""A module is stored unquantized, and a consumer builds it quantized.

## What it checks
Every unquantized weight is in a module that vLLM and SGLang (or those that `--consumers` names) leave
unquantized under this config: it is ignored, not targeted, or of a kind that they never quantize.

## Why it matters
The consumer allocates packed weights and scales, and nothing in the checkpoint fills them. vLLM stops. SGLang stops
or serves what was in memory; that is for each model's loader to decide. Where the weight keeps its name, as FP8 does, it is
cast without a scale. Routers are the usual case: transformers keeps them in full precision whatever a list says, so a
checkpoint that it loads without a word fails in the engine.

## How to fix
Name the module in the ignore list, as the module is called in the engine. `ckptcheck scan --fix` writes a list that all
chosen consumers read in the same way.

## When it can be wrong
For a consumer that the checkpoint is not meant for: name yours with `--consumers`.

## Seen in
vllm-project/vllm (Qwen3-MoE's gate absent from `ignore`), sgl-project/sglang#24927
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.effects import described
from ckptcheck.dialects.views import clashes, views


@rule(
    "QNT021",
    "targeted-but-unquantized",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for found in described(ckpt, clashes(ckpt, quantized=False)):
        yield Problem(
            f"{found.modules} {found.are} stored unquantized, but {found.because}: {found.effects}",
            file=found.file,
            key=found.key,
            hint=found.hint,
        )
