"""A module is stored unquantized, and a consumer builds it quantized.

## What it checks
Every unquantized weight is in a module that vLLM and SGLang (or the consumers that `--consumers` names) leave unquantized under
this config: it is ignored, not targeted, or of a kind that they never quantize. With compressed-tensors an unquantized `lm_head` is
ignored: the engines do not count it to the Linear modules, and transformers does (a warning). With AutoRound no module that
`extra_config` gives fewer than 16 bits by its name is stored unquantized.

## Why it matters
The consumer allocates packed weights and scales, and nothing in the checkpoint fills them.
- vLLM stops. SGLang stops, or serves uninitialized memory, depending on the model's loader.
- If the weight keeps its name, as in FP8, it is cast without a scale.

The usual case is a router: transformers keeps it in full precision, whether or not the ignore list has it. So the checkpoint loads
there without a warning, and fails in the engine.

## How to fix
Add the module to the ignore list, under the name that it has in the engine. `ckptcheck scan --fix` writes a list that all chosen
consumers read in the same way.

Where the list leaves the module out by the name of its parameter (`re:.*mlp.gate.weight$`), as slime's guide recommends, and SGLang
builds it as stored, the finding is a warning: slime's trainer and its engine read the list as meant, and vLLM does not. With
`--consumers vllm` it is an error; `ckptcheck preflight` judges by the job's own engine.

## When it can be wrong
The checkpoint may not be made for this consumer. Name yours with `--consumers`. The rule is skipped, and says so, for an
architecture that this version of ckptcheck does not know.

## Seen in
vllm-project/vllm (Qwen3-MoE's gate absent from `ignore`), sgl-project/sglang#24927
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.consumers.base import ConsumerError, UnknownBehavior
from ckptcheck.consumers.effects import summarize_mismatches
from ckptcheck.consumers.entries import EntryList, parse_exact_or_regex
from ckptcheck.consumers.mismatches import evaluate_checkpoint, find_mismatches, require_known_architecture


@rule(
    "QNT021",
    "targeted-but-unquantized",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and bool(evaluate_checkpoint(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    for summary in summarize_mismatches(ckpt, find_mismatches(ckpt, quantized=False)):
        yield Problem(
            f"{summary.modules} {summary.verb} stored unquantized, but {summary.reason}: {summary.effects}"
            + (
                f"; {summary.spared} is not hurt, and slime reads the list as its author meant"
                if summary.spared
                else ""
            ),
            file=summary.file,
            key=summary.key,
            hint=summary.hint,
            severity="warning" if summary.spared else None,
        )
    yield from _check_head(ckpt)
    yield from _check_rounded(ckpt)
    require_known_architecture(ckpt, quantized=False)


def _check_rounded(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield the modules that AutoRound's `extra_config` names as quantized and that are stored unquantized.

    AutoRound 0.16 itself writes such a head if it rounds without tuning and should quantize it.
    """
    quantization = ckpt.quantization
    if quantization is None or quantization.main_declaration is None or quantization.method != "auto-round":
        return
    for scheme in quantization.schemes:
        for module in scheme.targets:
            stored = quantization.storage_by_module.get(module)
            if scheme.weights is None or stored is None or stored.weight is None or stored.is_quantized:
                continue
            yield Problem(
                f"{module} is stored unquantized, but extra_config gives it {scheme.weights.bits} bits: AutoRound, with which "
                "transformers loads it, builds it quantized, leaves its weight out, and computes with uninitialised memory",
                file=quantization.main_declaration.file,
                key=scheme.key,
                hint="give the module 16 bits in extra_config, or quantize it",
            )


def _check_head(ckpt: Checkpoint) -> Iterator[Problem]:
    """Yield a head that compressed-tensors builds quantized within transformers: a Linear to it, and none to the engines."""
    head, declared = (
        ckpt.tensors.get("lm_head.weight"),
        ckpt.quantization.main_declaration if ckpt.quantization else None,
    )
    if ckpt.options.consumers and "transformers" not in ckpt.options.consumers:
        return
    if head is None or declared is None or declared.method != "compressed-tensors" or ckpt.components.is_tied:
        return
    groups, ignored = declared.value.get("config_groups"), declared.value.get("ignore") or []
    targets = [
        target
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and group.get("weights") and isinstance(group.get("targets"), list)
        for target in group["targets"]
    ]
    if "Linear" not in targets or not head.is_plain or not isinstance(ignored, list) or "Linear" in ignored:
        return
    try:
        if EntryList(ignored, parse_exact_or_regex).match_all("lm_head"):
            return
    except (ConsumerError, UnknownBehavior):
        return
    yield Problem(
        "lm_head is stored unquantized, but the targets name every Linear and ignore does not name it: transformers starts the "
        "parts of a quantized head from random numbers; vLLM and SGLang are not hurt",
        file=declared.file,
        key=declared.key_path("ignore"),
        hint="add lm_head to ignore",
        severity="warning",
    )
