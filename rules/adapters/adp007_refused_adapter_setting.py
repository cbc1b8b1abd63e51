"""PEFT or vLLM refuses a setting of the adapter.

## What it checks
In an adapter_config.json of LoRA, the settings that PEFT computes with have the types and values that it takes: `r` is a whole
number above 0, `rank_pattern` an object of numbers, `bias` one of three words, and so on. `r`, `lora_alpha` and `target_modules`
are there. A `target_modules` of null is allowed where the adapter changes what PEFT takes then. Settings that PEFT takes and vLLM
0.32 refuses (`_validate_features` of vllm/lora/peft_helper.py) are an info: DoRA, `modules_to_save`, PiSSA and others.

## Why it matters
PEFT 0.21 stops while it loads the adapter, mostly with an AttributeError that names no setting. Without `r` or `lora_alpha` vLLM
refuses the adapter, and PEFT takes 8: it stops at the first matrix of another rank, or applies a wrong scale.

## How to fix
Use the config of the training run. Merge an adapter that vLLM does not take (`merge_and_unload`), and serve the merged model.

## When it can be wrong
The rule knows LoRA only. If your only consumer reads the setting as it is, use `--ignore ADP007`.

## Seen in
vllm-project/vllm#9280 (`modules_to_save`), vllm-project/vllm#10849 (DoRA); other refusals were observed.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import list_lora_pairs
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.consumers.peft import FAMILY_TARGETS, Targets, is_lora, list_refusals, list_unserved
from ckptcheck.consumers.regex_set import UnsupportedRegex
from ckptcheck.text.formatting import join_truncated

KNOWN = ("r", "lora_alpha", "target_modules", "peft_type")
"""Settings that show that a config without a `peft_type` is one of LoRA."""


@rule(
    "ADP007",
    "refused-adapter-setting",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and ckpt.adapter is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    config = ckpt.adapter
    if config is None:
        return
    kind = config.value.get("peft_type")
    if kind is None and any(key in config.value for key in KNOWN):
        yield Problem(
            "peft_type is missing, so PEFT does not know which kind of adapter it is, and refuses it",
            file="adapter_config.json",
            key="peft_type",
            hint="write the kind with which it was trained, such as LORA",
        )
    elif kind is not None and any(".lora_" in name for name in ckpt.tensors) and kind not in LORA_LIKE:
        yield Problem(
            f"peft_type is {str(kind)[:40]!r}, but the tensors are those of LORA: PEFT refuses the adapter or loads none of them",
            file="adapter_config.json",
            key="peft_type",
            hint="write LORA",
        )
    if is_lora(config):
        yield from _check_null_targets(ckpt, config)
        yield from _check_parameters(ckpt, config)
        for key, reason in list_refusals(config.value):
            yield Problem(
                f"{key} {reason}", file="adapter_config.json", key=key, hint="use the config of the training run"
            )
        for key, what in list_unserved(config.value):
            yield Problem(
                f"{key} asks for {what}, which vLLM 0.32 refuses to serve; PEFT takes it",
                file="adapter_config.json",
                key=key,
                severity="info",
                hint="for vLLM merge the adapter into its base model",
            )


def _check_null_targets(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield a `target_modules` of null where the adapter changes other modules than PEFT takes then."""
    changed = {pair.module.rpartition(".")[2] for pair in list_lora_pairs(ckpt.tensors)}
    is_null = "target_modules" in config.value and config.value["target_modules"] is None
    if is_null and changed and changed not in FAMILY_TARGETS and not config.value.get("target_parameters"):
        yield Problem(
            f"target_modules is null, so PEFT takes those that it lists for the model's family; the adapter has matrices for "
            f"{join_truncated(sorted(changed))}, which it lists for none",
            file="adapter_config.json",
            key="target_modules",
            hint="use the config of the training run",
        )


def _check_parameters(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield parameters of modules that a pattern of `target_modules` chooses too; `list_refusals` judges a list of modules."""
    named, targets = config.value.get("target_parameters"), Targets(config)
    if not isinstance(named, list) or not isinstance(config.value.get("target_modules"), str) or not targets.is_known:
        return
    for name in named:
        parent = name.rpartition(".")[0] if isinstance(name, str) else ""
        for pair in list_lora_pairs(ckpt.tensors) if parent else ():
            try:
                is_both = f".{pair.module}".endswith(f".{parent}") and targets.includes(pair.module)
            except UnsupportedRegex:
                return
            if is_both:
                yield Problem(
                    f"target_parameters names {name[:60]!r}, whose module target_modules chooses too, and PEFT takes only one "
                    "of them",
                    file="adapter_config.json",
                    key="target_parameters",
                    hint="use the config of the training run",
                )
                break


LORA_LIKE = ("LORA", "ADALORA", "XLORA", "RANDLORA")
"""Kinds of adapters whose tensors have names with ``lora_``."""
