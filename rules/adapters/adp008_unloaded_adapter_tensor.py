"""PEFT has no place for tensors of the adapter, or lacks some that its config declares.

## What it checks
For LoRA, with the rules by which PEFT matches names:
- Each tensor has a name of PEFT: `base_model.model.`, a module, and `lora_A.weight` or one of its other parts. The file has at
  least one matrix.
- Each module with matrices is one that `target_modules` and the settings beside it choose. With `ensure_weight_tying` the rule
  leaves out modules outside of the layers: PEFT gives matrices to both embedding and head if one of them has some.
- With `use_dora` each pair has its magnitude, and without it none. The same holds for `lora_bias`, and for the tensors that KaSA,
  MonteCLoRA and VeLoRA add.
- With `trainable_token_indices` there are trained tokens, as many as it names.
- Biases belong to modules with matrices, or to those that are saved as a whole.
- With `layer_replication` the last of the replicated layers has matrices.

## Why it matters
PEFT 0.21 builds the matrices that the config asks for, and fills them from the file by name. It initialises a matrix that the file
lacks: lora_B is zero, so that the layer answers like the base model. It warns of such a matrix, but not of a stored tensor that it
leaves out. vLLM refuses names that it does not know.

## How to fix
Save the adapter with `save_pretrained` of PEFT, from all ranks, and keep the config beside it.

## When it can be wrong
- A loader of your own may take other names. Then use `--ignore ADP008`.
- The rule does not check modules if `target_modules` is `all-linear` or a regular expression that ckptcheck cannot evaluate.
- Only the base model shows whether a module lacks its matrices: ADP009.

## Seen in
huggingface/peft#2566, huggingface/peft#2772 (matrices start anew), vllm-project/vllm#34186 (an adapter that does nothing)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import PREFIX, list_lora_pairs, list_replicated_layers
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.consumers.peft import VARIANTS, Targets, is_lora
from ckptcheck.consumers.regex_set import UnsupportedRegex
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count, join_truncated

PART = re.compile(
    r"\.(lora_[AB](\.(?!weight$|bias$)[^.]+)?\.(weight|bias)|lora_embedding_[AB](\.[^.]+)?"
    r"|token_adapter\.trainable_tokens_delta(\.[^.]+)?|(" + "|".join(VARIANTS) + r")(\.[^.]+)*)$"
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
    odd = [name for name in ckpt.tensors if name not in misnamed and not _is_known_part(ckpt, name)]
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
    yield from _check_variants(ckpt, config)
    yield from _check_biases(ckpt, config)
    yield from _check_tokens(ckpt, config)
    yield from _check_targets(ckpt, config)


def _is_known_part(ckpt: Checkpoint, name: str) -> bool:
    if not OTHER_PART.search(name):
        return name.endswith((".weight", ".bias"))
    if PART.search(name) is None or name.count(".lora_") > 1:
        return False
    return not name.endswith(".bias") or f"{name.removesuffix('bias')}weight" in ckpt.tensors


def _check_variants(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield what is missing of DoRA, of biases and of other variants, or stored without being declared."""
    pairs = {f"{PREFIX}{pair.module}": pair for pair in list_lora_pairs(ckpt.tensors)}
    for part, (setting, title, start) in VARIANTS.items():
        stored = {module: name for name in ckpt.tensors for module, found, _ in [name.partition(f".{part}")] if found}
        value = config.value.get(setting)
        if value in (None, False) and stored:
            yield _problem(
                ckpt,
                list(stored.values()),
                f"{count(len(stored), 'module has', 'modules have')} a {part}, which belongs to {title}, and {setting} is not set: "
                "PEFT leaves it out",
            )
        elif value not in (None, False) and (alone := [name for module, name in stored.items() if module not in pairs]):
            yield _problem(
                ckpt,
                alone,
                f"{count(len(alone), 'module has', 'modules have')} a {part}, and no lora_A and lora_B: PEFT starts those anew",
            )
        elif value not in (None, False) and (lacking := [pairs[each].down for each in pairs if each not in stored]):
            yield _problem(
                ckpt,
                lacking,
                f"{setting} is set, and {count(len(lacking), 'module has', 'modules have')} no {part}: PEFT starts it {start}",
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


def _check_biases(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield biases of modules that the adapter neither changes nor saves as a whole."""
    if config.value.get("bias", "none") not in ("none", "lora_only"):
        return
    modules = {f"{PREFIX}{pair.module}" for pair in list_lora_pairs(ckpt.tensors)}
    saved = config.value.get("modules_to_save")
    names = [name for name in ckpt.tensors if name.endswith(".bias") and ".lora_" not in name]
    foreign = [
        name
        for name in names
        if name.removesuffix(".bias").removesuffix(".base_layer") not in modules
        and not any(f".{each}." in name for each in (saved if isinstance(saved, list) else ()))
    ]
    if foreign and modules:
        yield _problem(
            ckpt,
            foreign,
            f"{count(len(foreign), 'bias belongs', 'biases belong')} to no module that the adapter changes or saves, so that PEFT "
            "leaves them out",
        )


def _check_tokens(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield trained tokens that are missing, undeclared, or of another number than the config says."""
    indices = config.value.get("trainable_token_indices")
    trained = [name for name in ckpt.tensors if "trainable_tokens_delta" in name]
    if bool(indices) != bool(trained):
        yield _problem(
            ckpt,
            trained or [next(iter(ckpt.tensors))],
            "trained tokens are stored, and trainable_token_indices names none: PEFT leaves them out"
            if trained
            else "trainable_token_indices names tokens, and none is stored: PEFT stops with a KeyError",
        )
        return
    for name in trained:
        module = name.partition(".token_adapter.")[0]
        named = (
            next((each for key, each in indices.items() if f"{PREFIX}{module}".endswith(f".{key}")), None)
            if isinstance(indices, dict)
            else indices
        )
        rows = ckpt.tensors[name].shape[0] if ckpt.tensors[name].shape else 0
        if isinstance(named, list) and rows != len(named):
            yield _problem(
                ckpt,
                [name],
                f"{count(rows, 'trained token is', 'trained tokens are')} stored, and trainable_token_indices names {len(named)}: "
                "PEFT stops with a size mismatch",
            )


def _check_targets(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield the modules that have matrices, and that the config does not choose."""
    targets = Targets(config)
    modules = {pair.module: pair.down for pair in list_lora_pairs(ckpt.tensors)}
    if config.value.get("target_parameters"):
        return
    if not modules and config.value.get("target_modules") and not any(".lora_" in name for name in ckpt.tensors):
        yield _problem(
            ckpt,
            [next(iter(ckpt.tensors))],
            "there is no lora_A and no lora_B: PEFT starts all matrices anew, so that they change nothing",
        )
    replicated = list_replicated_layers(config)
    layers = [int(found[1]) for module in modules if (found := LAYER.search(module))]
    if replicated and layers and max(layers) < len(replicated) - 1 and config.value.get("layers_to_transform") is None:
        yield _problem(
            ckpt,
            [next(iter(modules.values()))],
            f"layer_replication makes {len(replicated)} layers, and the last one with matrices is layer {max(layers)}: PEFT starts "
            "the others anew, so that they change nothing",
        )
    if not targets.is_known or not modules:
        return
    # PEFT gives the head matrices too where the embedding has some, and the other way around.
    ties = config.value.get("ensure_weight_tying") is True
    try:
        foreign = [
            name
            for module, name in modules.items()
            if not targets.includes(module) and not (ties and LAYER.search(module) is None)
        ]
    except UnsupportedRegex as error:
        raise Skip(f"a pattern of adapter_config.json cannot be evaluated: {error}") from error
    if foreign:
        yield _problem(
            ckpt,
            foreign,
            f"{count(len(foreign), 'module has', 'modules have')} matrices that the config does not ask for (target_modules "
            "and the settings beside it), so that PEFT leaves them out",
        )


def _problem(ckpt: Checkpoint, names: list[str], message: str) -> Problem:
    return Problem(
        f"{message}: {join_truncated([name.removeprefix(PREFIX) for name in names])}",
        file=ckpt.tensor_to_file[names[0]],
        key=names[0],
        hint=HINT,
    )
