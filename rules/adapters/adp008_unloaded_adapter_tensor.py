"""PEFT has no place for tensors of the adapter, or lacks some that its config declares.

## What it checks
For LoRA, with the rules by which PEFT matches names:
- Each tensor is named as PEFT names it: `base_model.model.`, a module, and `lora_A.weight` or one of its other parts.
- Each module with matrices is one that `target_modules` and the settings beside it choose, and each name in a list of
  `target_modules` chooses one.
- With `use_dora` each pair has its magnitude, and without it none; with `lora_bias` each pair has a bias.
- With `trainable_token_indices` there are trained tokens.
- With the base model at hand (`--base FOLDER`, or a folder beside the adapter that adapter_config.json names) each module of it
  that the config chooses has matrices, and each of `modules_to_save` that it has is stored.

## Why it matters
PEFT 0.21 builds the matrices that the config asks for, and fills them from the file by name. What it finds no name for it starts
anew: lora_B at zero, so that the layer answers like the base model. It warns of those, and says nothing of a stored tensor that it
leaves out. Modules that are to be saved and are not stop it with a KeyError. vLLM refuses names that it does not know.

## How to fix
Save the adapter with `save_pretrained` of PEFT, from all ranks, and keep the config beside it.

## When it can be wrong
- A loader of your own may take other names. Then `--ignore ADP008`.
- Nothing is said of the modules where `target_modules` is `all-linear` or a regular expression that ckptcheck cannot evaluate, or
  where the base model's file and PEFT give a module different names. Experts are left out, since transformers fuses them.
- Without the base model a module that was lost in one layer is not found.

## Seen in
huggingface/peft#2566, huggingface/peft#2772 (matrices start anew), vllm-project/vllm#34186 (an adapter that does nothing)
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
from ckptcheck.consumers.regex_nfa import UnsupportedRegex
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count, join_truncated

PART = re.compile(
    r"\.(lora_[AB](\.(?!weight$|bias$)[^.]+)?\.(weight|bias)"
    r"|lora_embedding_[AB](\.[^.]+)?|lora_magnitude_vector(\.[^.]+)*|trainable_tokens_delta(\.[^.]+)?)$"
)
"""What PEFT calls the parts of LoRA, with the adapter's name or without."""
OTHER_PART = re.compile(r"lora|magnitude|trainable_tokens", re.IGNORECASE)
LAYER = re.compile(r"\.(\d{1,9})\.")
HINT = "save the adapter with save_pretrained of PEFT, and keep its config beside it"


@rule(
    "ADP008",
    "unloaded-adapter-tensor",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and is_lora(ckpt.adapter) and bool(ckpt.tensors),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    config = ckpt.adapter
    assert config is not None
    misnamed = [name for name in ckpt.tensors if not name.startswith(PREFIX) or name.startswith(2 * PREFIX)]
    odd = [
        name
        for name in ckpt.tensors
        if name not in misnamed
        and (
            PART.search(name) is None
            or (name.endswith(".bias") and f"{name.removesuffix('bias')}weight" not in ckpt.tensors)
            if OTHER_PART.search(name)
            else not name.endswith((".weight", ".bias"))
        )
    ]
    for names, reason in (
        (misnamed, f"do not begin with one {PREFIX}"),
        (odd, "end with no part of LoRA that PEFT knows"),
    ):
        if names:
            yield _problem(
                ckpt, names, f"the names of {count(len(names), 'tensor')} {reason}, so that PEFT leaves them out"
            )
    if misnamed or odd:
        return
    yield from _check_extras(ckpt, config)
    yield from _check_targets(ckpt, config)


def _check_extras(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield what is missing of DoRA, of biases and of trained tokens, or stored without being declared."""
    magnitudes = {name.partition(".lora_magnitude_vector")[0] for name in ckpt.tensors if ".lora_magnitude" in name}
    pairs = {f"{PREFIX}{pair.module}": pair for pair in list_lora_pairs(ckpt.tensors)}
    if config.value.get("use_dora") is True and not magnitudes <= pairs.keys():
        alone = [
            name for name in ckpt.tensors if ".lora_magnitude" in name and name.partition(".lora_mag")[0] not in pairs
        ]
        yield _problem(
            ckpt,
            alone,
            f"{count(len(alone), 'module has a lora_magnitude_vector', 'modules have a lora_magnitude_vector')}, and no lora_A and "
            "lora_B: PEFT starts those anew",
        )
    elif config.value.get("use_dora") is True:
        lacking = [pairs[module].down for module in pairs if module not in magnitudes]
        if lacking:
            yield _problem(
                ckpt,
                lacking,
                f"use_dora is true, and {count(len(lacking), 'module has', 'modules have')} no lora_magnitude_vector: PEFT starts "
                "it from the base model's weight",
            )
    elif magnitudes:
        names = [name for name in ckpt.tensors if ".lora_magnitude" in name]
        yield _problem(
            ckpt,
            names,
            f"{count(len(names), 'tensor belongs', 'tensors belong')} to DoRA, and use_dora is not true: PEFT leaves them out",
        )
    biases = [name for name in ckpt.tensors if re.search(r"\.lora_B(\.[^.]+)?\.bias$", name)]
    if (config.value.get("lora_bias") is True) != bool(biases) and pairs:
        yield _problem(
            ckpt,
            biases or [next(iter(pairs.values())).up],
            "biases of lora_B are stored, and lora_bias is not true: PEFT leaves them out"
            if biases
            else "lora_bias is true, and no bias of a lora_B is stored: PEFT starts them at zero",
        )
    trained = [name for name in ckpt.tensors if "trainable_tokens_delta" in name]
    if bool(config.value.get("trainable_token_indices")) != bool(trained):
        yield _problem(
            ckpt,
            trained or [next(iter(ckpt.tensors))],
            "trained tokens are stored, and trainable_token_indices names none: PEFT leaves them out"
            if trained
            else "trainable_token_indices names tokens, and none is stored: PEFT stops with a KeyError",
        )


def _check_targets(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield the modules that the config and the tensors do not both name."""
    targets = Targets(config)
    modules = {pair.module: pair.down for pair in list_lora_pairs(ckpt.tensors)}
    if not targets.is_known or not modules or config.value.get("target_parameters"):
        return
    try:
        foreign = [name for module, name in modules.items() if not targets.includes(module)]
        if foreign:
            yield _problem(
                ckpt,
                foreign,
                f"{count(len(foreign), 'module has', 'modules have')} matrices that the config does not ask for (target_modules "
                "and the settings beside it), so that PEFT leaves them out",
            )
        listed = config.value["target_modules"]
        if isinstance(listed, list):
            unused = [name for name in listed if not any(_ends_with(module, name) for module in modules)]
            if unused and len(unused) < len(listed):
                yield from _check_unused(ckpt, unused)
        yield from _check_base(ckpt, config, targets, set(modules))
    except UnsupportedRegex as error:
        raise Skip(f"a pattern of adapter_config.json cannot be evaluated: {error}") from error


def _check_unused(ckpt: Checkpoint, unused: list[str]) -> Iterator[Problem]:
    """Yield the names of target_modules for which nothing is stored, although the base model has such modules."""
    try:
        base = open_base_model(ckpt)
    except Skip:
        return
    found = [name for name in unused if any(_ends_with(tensor.rpartition(".")[0], name) for tensor in base.tensors)]
    if found:
        yield Problem(
            f"target_modules names {join_truncated(found)}, the base model has such modules, and the adapter has no matrices for "
            "them: PEFT starts theirs anew, so that they change nothing",
            file="adapter_config.json",
            key="target_modules",
            hint=HINT,
        )


def _check_base(ckpt: Checkpoint, config: Config, targets: Targets, modules: set[str]) -> Iterator[Problem]:
    """Yield the modules of the base model that the config chooses and that have no matrices here."""
    base = open_base_model(ckpt)
    inside = {name.rpartition(".")[0] for name, tensor in base.tensors.items() if len(tensor.shape) == 2}
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


def _problem(ckpt: Checkpoint, names: list[str], message: str) -> Problem:
    return Problem(
        f"{message}: {join_truncated([name.removeprefix(PREFIX) for name in names])}",
        file=ckpt.tensor_to_file[names[0]],
        key=names[0],
        hint=HINT,
    )
