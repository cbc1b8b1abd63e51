"""A consumer refuses the quantization config.

## What it checks
vLLM or SGLang (with `--consumers`: each consumer that it names) accepts the method, its settings and its lists: nothing in them
makes that version raise an error. QNT022 reports lists that split a fused module.

## Why it matters
The engine does not start, whatever the weights are. Often only one of two engines refuses the config, or only the engine and
not the trainer.

## How to fix
Do what the message says, or use another consumer and name it with `--consumers`.

## When it can be wrong
The checkpoint may not be made for this consumer, or for this version of it. The tests of this project compare how each version
reads a config with its real code.

## Seen in
sgl-project/sglang (FP8_PB_WO of ModelOpt), vllm-project/vllm (bitsandbytes after it left the core list)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_refusals


@rule(
    "QNT027",
    "refused-config",
    severity="error",
    on="quantization",
    when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt)),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    evaluations = evaluate_checkpoint(ckpt)
    errors = [(view.consumer, view.error) for view in evaluations.values() if view.error is not None]
    errors += [(refusal.consumer, refusal.error) for refusal in find_refusals(ckpt) if not refusal.splits_module]
    # if the user names no consumers and one accepts the config, the checkpoint is meant for that one
    if not ckpt.options.consumers and len({consumer.name for consumer, _ in errors}) < len(evaluations):
        return
    for consumer, error in errors:
        yield Problem(
            f"{consumer.label} refuses it: {error}",
            file=ckpt.quantization.declarations[0].file,
            key=ckpt.quantization.declarations[0].key,
        )
