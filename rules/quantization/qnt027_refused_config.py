"""A consumer refuses the quantization config, or has no kernel for the declared scheme.

## What it checks
- vLLM or SGLang (with `--consumers`: each consumer that it names) accepts the method, its settings and its lists: nothing in
  them makes that version raise an error. QNT022 reports lists that split a fused module.
- vLLM 0.32 takes the scheme (a warning). It refuses GPTQ with `desc_act` and groups, with other bits than 4 and 8, or
  asymmetric; AWQ with other bits than 4; fp8 without `activation_scheme`, or in blocks with a static one.

## Why it matters
The engine does not start, whatever the weights are. Often only one of two engines refuses the config, or only the engine and
not the trainer: transformers with GPTQModel or AutoAWQ loads the schemes that vLLM refuses.

## How to fix
Follow the message: quantize again with a scheme that both read, or add the setting. Or use another consumer and name it
with `--consumers`.

## When it can be wrong
The checkpoint may not be made for this consumer, or for this version of it. The tests of this project compare how each version
reads a config with its real code.

## Seen in
sgl-project/sglang (FP8_PB_WO of ModelOpt), vllm-project/vllm (bitsandbytes after it left the core list),
vllm/model_executor/layers/quantization auto_gptq.py, auto_awq.py, fp8.py (0.32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_refusals

WITH_KERNELS = ("gptq", "awq", "fp8")
"""Methods whose config vLLM accepts for more schemes than it has kernels for."""


@rule("QNT027", "refused-config", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    if (main := ckpt.quantization.main_declaration) is None:
        return
    refusals = [] if ckpt.is_partial else _list_refusals(ckpt)
    for consumer, error in refusals:
        yield Problem(f"{consumer} refuses it: {error}", file=main.file, key=main.key)
    if not refusals and main.method in WITH_KERNELS:
        for key, text in _fp8(main) if main.method == "fp8" else _packed(main, ckpt.quantization.schemes):
            yield Problem(
                f"{text}; vLLM 0.32 refuses it",
                file=main.file,
                key=key,
                severity="warning",
                hint="quantize again, or correct the setting",
            )


def _list_refusals(ckpt: QuantizedCheckpoint) -> list[tuple[str, str]]:
    """Return (consumer, error) for those that refuse the config."""
    evaluations = evaluate_checkpoint(ckpt)
    errors = [(view.consumer, view.error) for view in evaluations.values() if view.error is not None]
    errors += [(refusal.consumer, refusal.error) for refusal in find_refusals(ckpt) if not refusal.splits_module]
    # if the user names no consumers and one accepts the config, the checkpoint is meant for that one
    if not ckpt.options.consumers and len({consumer.name for consumer, _ in errors}) < len(evaluations):
        return []
    return [(consumer.label, error) for consumer, error in errors]


def _fp8(main: Declaration) -> Iterator[tuple[str, str]]:
    scheme = main.value.get("activation_scheme")
    key = main.key_path("activation_scheme")
    if scheme not in ("static", "dynamic"):
        yield key, "there is no activation_scheme" if scheme is None else f"activation_scheme is {scheme!r:.30}"
    elif scheme == "static" and main.value.get("weight_block_size") is not None:
        yield key, "activation_scheme is static, but weights in blocks need a dynamic one"


def _packed(main: Declaration, schemes: tuple[Scheme, ...]) -> Iterator[tuple[str, str]]:
    for scheme in schemes:
        weights = scheme.weights
        # GPTQ's `dynamic` excludes these modules.
        if weights is None:
            continue
        if main.method == "awq":
            if weights.bits not in (4, None):
                yield scheme.key, f"AWQ has {weights.bits} bits"
            continue
        if weights.actorder is True and weights.group_size != -1:
            yield scheme.key, f"desc_act is true with groups of {weights.group_size}"
        if weights.bits is not None and (weights.bits not in (4, 8) or not weights.symmetric):
            yield scheme.key, f"GPTQ has {weights.bits} bits and is {'' if weights.symmetric else 'a'}symmetric"
