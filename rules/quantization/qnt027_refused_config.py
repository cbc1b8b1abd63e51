"""A consumer refuses the quantization config.

## What it checks
One of vLLM and SGLang, or each of those that `--consumers` names, accepts the method, its settings and its lists: nothing in them
makes that version raise. Lists that take a fused module apart are QNT022's.

## Why it matters
The engine does not start, whatever the weights are. Often only one of two engines refuses, or only the engine and not the trainer.

## How to fix
As the message says; or use another consumer, and name it with `--consumers`.

## When it can be wrong
For a consumer that the checkpoint is not meant for, or another version of it. How each version reads a config is held to
its real code by this project's tests.

## Seen in
sgl-project/sglang (FP8_PB_WO of ModelOpt), vllm-project/vllm (bitsandbytes after it left the core list)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import PARTS, refusals, views


@rule("QNT027", "refused-config", severity="error", when=lambda ckpt: not ckpt.is_partial and bool(views(ckpt)))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    every = views(ckpt)
    found = [(name, f"{name} {view.version}", view.error) for name, view in every.items() if view.error is not None]
    found += [(who.split()[0], who, error) for who, error, _ in refusals(ckpt) if PARTS not in error]
    if not ckpt.options.consumers and {name for name, _, _ in found} != every.keys():
        return  # it was made for another engine, unless somebody says otherwise
    for _, who, error in found:
        yield Problem(f"{who} refuses it: {error}", file=ckpt.quantization.main.file, key=ckpt.quantization.main.key)
