"""A consumer refuses the quantization config, has no kernel for its scheme, or stops at a module.

## What it checks
- vLLM or SGLang (with `--consumers`: each consumer that it names) accepts the method, its settings and its lists: nothing in
  them makes that version raise an error. If only one of the two refuses GPTQ, AWQ or fp8, it is a warning.
- What engines build as one module is quantized as a whole or not at all, under one scheme, by the lists and targets of the config
  as each engine reads them: q, k and v; gate and up; the two halves of MLA's first projection; the experts of a layer.

## Why it matters
The engine does not start, whatever the weights are. Often only one of two engines refuses the config, or only the engine and
not the trainer: transformers with GPTQModel or AutoAWQ loads schemes that vLLM refuses (`desc_act` with groups, other bits than
4 and 8, AWQ with other bits than 4), and keeps the parts of a fused module separate.

## How to fix
Follow the message: quantize again with a scheme that both read, or add the setting. Or use another consumer and name it
with `--consumers`. Name all parts of a fused module in the list, or none of them: `re:.*mlp.gate` matches gate_proj with the
router, and leaves up_proj out.

## When it can be wrong
The checkpoint may not be made for this consumer, or for this version of it. The tests of this project compare how each version
reads a config with its real code. What an engine builds for an architecture that this version of ckptcheck does not know is not
judged; QNT020 says so.

## Seen in
sgl-project/sglang (FP8_PB_WO of ModelOpt), vllm-project/vllm (bitsandbytes after it left the core list),
vllm/model_executor/layers/quantization auto_gptq.py, auto_awq.py, fp8.py (0.32); `should_ignore_layer` of vllm-project/vllm and of
sgl-project/sglang (both raise)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_refusals

WITH_KERNELS = ("gptq", "awq", "fp8")
"""Methods with schemes for which one engine alone has a kernel. Other methods are made for one engine."""


@rule("QNT027", "refused-config", severity="error", on="quantization", when=lambda ckpt: not ckpt.is_partial)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    evaluations = evaluate_checkpoint(ckpt)
    if (main := ckpt.quantization.main_declaration) is None or not evaluations:
        return
    errors = [(view.consumer, view.error) for view in evaluations.values() if view.error is not None]
    for refusal in find_refusals(ckpt):
        if not refusal.splits_module:
            errors.append((refusal.consumer, refusal.error))
            continue
        others = f" ({len(refusal.modules) - 1:,} more like this)" if len(refusal.modules) > 1 else ""
        yield Problem(
            f"{refusal.consumer.label} stops: {refusal.error}{others}",
            file=main.file,
            key=main.key,
            hint="name all parts of the fused module in the list, or none",
            names=refusal.modules,
        )
    # if the user names no consumers and one accepts the config, the checkpoint may be meant for that one
    is_accepted = not ckpt.options.consumers and len({consumer.name for consumer, _ in errors}) < len(evaluations)
    for consumer, error in errors if not is_accepted or main.method in WITH_KERNELS else ():
        yield Problem(
            f"{consumer.label} refuses it: {error}",
            file=main.file,
            key=main.key,
            hint="if this entry of the config is a slip, mend it; if the weights are of this scheme, use a consumer that reads it"
            f" (name it with --consumers), or quantize again with one that {consumer.name} reads",
            severity="warning" if is_accepted else None,
        )
