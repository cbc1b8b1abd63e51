"""PEFT has no place for tensors of the adapter, or lacks some that its config declares.

## What it checks
For LoRA, with the rules by which PEFT matches names:
- Each tensor has a name of PEFT: `base_model.model.`, a module, and `lora_A.weight` or one of its other parts. The file has at
  least one matrix.
- Each module with matrices is one that `target_modules` and the settings beside it choose. With `ensure_weight_tying` the rule
  leaves out modules outside of the layers: PEFT gives matrices to both embedding and head if one of them has some.
- With `use_dora` each pair has its magnitude, and without it none.

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
huggingface/peft#2566, huggingface/peft#2772 (matrices start anew), vllm-project/vllm#34186 (an adapter that does nothing),
MakazhanAlpamys/Soup#351 (names of torch.compile's wrapper)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.adapter import PREFIX, list_lora_pairs
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import WRAPPER
from ckptcheck.consumers.peft import VARIANTS, Targets, is_lora
from ckptcheck.consumers.regex_set import UnsupportedRegex
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count, join_truncated

PART = re.compile(
    r"\.(lora_[AB](\.(?!weight$|bias$)[^.]+)?\.(weight|bias)|lora_embedding_[AB](\.[^.]+)?"
    r"|token_adapter\.trainable_tokens_delta(\.[^.]+)?|(" + "|".join(VARIANTS) + r")(\.[^.]+)*)$"
)
"""What PEFT calls the parts of LoRA, with the adapter's name or without."""
MAGNITUDE = "lora_magnitude_vector"
"""What DoRA stores beside lora_A and lora_B."""
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
    wrapped = [name for name in ckpt.tensors if name not in misnamed and WRAPPER.search(name)]
    odd = [name for name in ckpt.tensors if name not in {*misnamed, *wrapped} and not _is_known_part(ckpt, name)]
    for names, reason in (
        (misnamed, f"do not begin with one {PREFIX}"),
        (wrapped, "keep the name of a module that wraps the model while it trains"),
        (odd, "end with no part of LoRA that PEFT knows"),
    ):
        if names:
            yield _problem(
                ckpt, names, f"the names of {count(len(names), 'tensor')} {reason}, so that PEFT leaves them out"
            )
    if misnamed or wrapped or odd:
        return
    yield from _check_magnitudes(ckpt, config)
    yield from _check_targets(ckpt, config)


def _is_known_part(ckpt: Checkpoint, name: str) -> bool:
    if not OTHER_PART.search(name):
        return name.endswith((".weight", ".bias"))
    if PART.search(name) is None or name.count(".lora_") > 1:
        return False
    return not name.endswith(".bias") or f"{name.removesuffix('bias')}weight" in ckpt.tensors


def _check_magnitudes(ckpt: Checkpoint, config: Config) -> Iterator[Problem]:
    """Yield the magnitudes of DoRA that are missing, or stored without being declared."""
    pairs = {f"{PREFIX}{pair.module}": pair for pair in list_lora_pairs(ckpt.tensors)}
    stored = {name.partition(f".{MAGNITUDE}")[0]: name for name in ckpt.tensors if f".{MAGNITUDE}" in name}
    is_declared = config.value.get("use_dora") not in (None, False)
    lacking = [pair.down for module, pair in pairs.items() if module not in stored]
    if stored and not is_declared:
        yield _problem(
            ckpt,
            list(stored.values()),
            f"{count(len(stored), 'module has', 'modules have')} a {MAGNITUDE}, which belongs to DoRA, and use_dora is not set: "
            "PEFT leaves it out",
        )
    elif is_declared and lacking:
        yield _problem(
            ckpt,
            lacking,
            f"use_dora is set, and {count(len(lacking), 'module has', 'modules have')} no {MAGNITUDE}: PEFT starts it from the "
            "base model's weight",
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
