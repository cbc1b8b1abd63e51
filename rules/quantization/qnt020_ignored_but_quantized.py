"""A module is stored quantized, and a consumer builds it unquantized.

## What it checks
Every quantized weight is in a module that vLLM and SGLang (or those that `--consumers` names) build quantized from
this config: by its targets, its ignore list, and by what each of them never quantizes, whatever a list says, such as the
router of Qwen3-MoE in SGLang. How each version matches a list is held to its real code by this project's tests.

## Why it matters
The tensors have nowhere to go. vLLM stops at the first one. So does SGLang in some models (`q_proj` of Qwen3); in most it drops
them, with a warning (Llama) or without a line in the log (Qwen3-MoE), and serves what was in memory. transformers starts the
module at random. Where the weight keeps its name, as FP8 does, the numbers
are cast as they are, a thousand times too large.

## How to fix
Take the entry out of the list, or make it exact: `re:.*mlp.gate` also takes `mlp.gate_proj`, `re:.*mlp.gate$` does not.
Or quantize again, with the module left alone.

## When it can be wrong
For a consumer that the checkpoint is not meant for: name yours with `--consumers`.

## Seen in
vllm-project/llm-compressor (an example whose `re:.*mlp.gate` has no `$`), sgl-project/sglang#28018, sgl-project/sglang#24927
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.effects import described
from ckptcheck.dialects.views import clashes, views


@rule(
    "QNT020",
    "ignored-but-quantized",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for found in described(ckpt, clashes(ckpt, quantized=True)):
        yield Problem(
            f"{found.modules} {found.are} stored quantized, but {found.because}: {found.effects}",
            file=found.file,
            key=found.key,
            hint=found.hint,
        )
