"""The adapter has no matrices for modules of the base model that its config asks for.

## What it checks
For LoRA, with the base model at hand (`--base FOLDER`, or a folder beside the adapter that adapter_config.json names):
- Each module of it that `target_modules` and the settings beside it choose has matrices here.
- Each of `modules_to_save` that it has is stored.

Only headers of the base model are read. Without it the rule is skipped, and says so; ADP008 checks what the adapter alone shows.

## Why it matters
PEFT 0.21 builds the matrices that the config asks for. It initialises those that the file lacks, with lora_B at zero: the layer
answers like the base model, and only a warning says so. It stops with a KeyError if a module of `modules_to_save` is missing.

## How to fix
Save the adapter with `save_pretrained` of PEFT, from all ranks, and keep the config beside it.

## When it can be wrong
- The rule does not check modules if `target_modules` is `all-linear` or a regular expression that ckptcheck cannot evaluate, or
  if the base model's file and PEFT give a module different names. It leaves out experts, since transformers fuses them, and the
  layers that `layer_replication` repeats.

## Seen in
huggingface/peft#2566, huggingface/peft#2772 (matrices start anew)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import PREFIX, list_lora_pairs
from ckptcheck.checkpoint.base_model import open_base_model
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.consumers.peft import Targets, is_lora
from ckptcheck.consumers.regex_set import UnsupportedRegex
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count, join_truncated

LAYER = re.compile(r"\.(\d{1,9})\.")
HINT = "save the adapter with save_pretrained of PEFT, and keep its config beside it"


@rule(
    "ADP009",
    "lost-adapter-module",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and is_lora(ckpt.adapter) and bool(list_lora_pairs(ckpt.tensors)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    config = ckpt.adapter
    assert config is not None
    base = open_base_model(ckpt)
    inside = {name.rpartition(".")[0] for name, tensor in base.tensors.items() if len(tensor.shape) == 2}
    modules = {pair.module for pair in list_lora_pairs(ckpt.tensors)}
    targets = Targets(config)
    if targets.is_known and not config.value.get("target_parameters") and not config.value.get("layer_replication"):
        try:
            yield from _check_modules(base, config, targets, inside, modules)
        except UnsupportedRegex as error:
            raise Skip(f"a pattern of adapter_config.json cannot be evaluated: {error}") from error
    yield from _check_saved(ckpt, config, inside)


def _check_modules(
    base: Checkpoint, config: Config, targets: Targets, inside: set[str], modules: set[str]
) -> Iterator[Problem]:
    """Yield the modules of the base model that the config chooses and that have no matrices here."""
    listed = config.value["target_modules"]
    unused = (
        [name for name in listed if not any(_ends_with(module, name) for module in modules)]
        if isinstance(listed, list)
        else []
    )
    lost = [name for name in unused if any(_ends_with(module, name) and targets.includes(module) for module in inside)]
    if lost and len(unused) < len(listed):
        yield Problem(
            f"target_modules names {join_truncated(lost)}, the base model has such modules, and the adapter has no matrices for "
            "them: PEFT starts theirs anew, so that they change nothing",
            file="adapter_config.json",
            key="target_modules",
            hint=HINT,
        )
    if not modules <= inside:
        return
    depth = base.config.integer("num_hidden_layers", "n_layer", "num_layers") if base.config is not None else None
    stacks = {module[: found.start()] for module in modules if (found := LAYER.search(module))}
    lacking = sorted(
        module
        for module in inside - modules
        if ".experts." not in module
        and (found := LAYER.search(module)) is not None
        and module[: found.start()] in stacks
        and (depth is None or int(found[1]) < depth)
        and any(_ends_with(module, _last(each)) for each in modules)
        and targets.includes(module)
    )
    if lacking:
        yield Problem(
            f"{count(len(lacking), 'module')} that the config asks for "
            f"{'has' if len(lacking) == 1 else 'have'} no matrices here: {join_truncated(lacking)}; PEFT starts theirs anew, so "
            "that they change nothing",
            file="adapter_model.safetensors",
            hint=HINT,
        )


def _check_saved(ckpt: Checkpoint, config: Config, inside: set[str]) -> Iterator[Problem]:
    """Yield the modules that were to be saved as a whole, that the base model has, and that are not stored."""
    saved = config.value.get("modules_to_save")
    stored = {name.removeprefix(PREFIX).rpartition(".")[0] for name in ckpt.tensors}
    for name in saved if isinstance(saved, list) else []:
        if any(_ends_with(module, name) for module in inside) and not any(
            _ends_with(module, name) or f".{name}." in f".{module}." for module in stored
        ):
            yield Problem(
                f"modules_to_save names {name}, the base model has it, and the adapter does not: PEFT stops with a KeyError",
                file="adapter_config.json",
                key="modules_to_save",
                hint=HINT,
            )


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _ends_with(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")
