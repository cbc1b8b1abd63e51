"""The layers have names that this architecture does not use.

## What it checks
For the architectures of transformers: at least one module inside the layers has a name that transformers looks for. The known
names are those that transformers itself saves, with each option of the config on and off. A classifier, a bare model or another
class whose names were not learned is held against the language model of its `model_type`: it may have other names in front of
the layers, but no others within them.

## Why it matters
transformers initializes the whole model with random numbers and lists the omitted tensors in a warning. In SGLang many models
silently drop the tensors and answer /health with 200. It happens when a checkpoint in a trainer's or another library's layout
gets a `config.json`.

## How to fix
Convert the checkpoint to the Hugging Face layout of this architecture, or correct `architectures`.

## When it can be wrong
A loader with its own code (`auto_map`) may know these names; then this rule does not apply.

## Seen in
sgl-project/sglang#38616, sgl-project/sglang#38618 (GLM-5.3, 97 % of the bytes dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import join_truncated

TEXT_CLASSES = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""How the classes end that put a head for texts on a language model, which they call by one name."""


@rule(
    "CFG016",
    "foreign-layout",
    severity="error",
    when=lambda ckpt: _find_modules(ckpt) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    known, stack = _find_modules(ckpt), ckpt.components.stack
    if known is None or stack is None:
        return
    modules = {
        known.module(stack.full_name(layer, name)) for layer, names in ckpt.components.layers.items() for name in names
    }
    if not modules or any(known.has(module) for module in modules):
        return
    if known.architecture != _name_of(ckpt) and _has_relatives_layers(ckpt, known, modules):
        return
    yield Problem(
        f"{_name_of(ckpt)} has no layers with these names; transformers initializes the model with "
        f"random numbers: {join_truncated(modules)}",
        file=ckpt.file_of(stack.prefix),
        key=stack.prefix,
        hint="convert the checkpoint to this architecture's layout, or correct architectures in config.json",
    )


def _find_modules(ckpt: Checkpoint) -> KnownModules | None:
    """Return the modules of the architecture, else of a relative with the same layers, of which the table of tensors knows."""
    known, table = KnownModules.of(ckpt.config), WeightsTable.of(ckpt.config)
    if known is not None or table is None or not table.required or ckpt.config is None:
        return known
    bases = frozenset(module.partition(".")[0] for module in table.modules)
    return KnownModules(table.architecture, table.modules, bases)


def _name_of(ckpt: Checkpoint) -> str | None:
    return ckpt.config.architecture if ckpt.config is not None else None


def _has_relatives_layers(ckpt: Checkpoint, known: KnownModules, modules: set[str]) -> bool:
    """Whether the layers are those of a relative, and stand where a class of another task may have them.

    A class may call its model otherwise (`transformer` in LlamaForQuestionAnswering, where LlamaForCausalLM has `model`): one name
    in front. A classifier of text has nothing more in front. What any other class has there is not known, nor is it where a
    config nests that of its language model.
    """
    resolved = ckpt.config.resolved if ckpt.config is not None else None
    is_nested = resolved is not None and resolved.text is not resolved.top
    if is_nested or not (_name_of(ckpt) or "").endswith(TEXT_CLASSES):
        inside = {_after_number(module) for module in known.modules}
        return any(_after_number(module) in inside for module in modules)
    accepted = {module.partition(".")[2] for module in known.modules}
    if len({module.partition(".")[0] for module in known.modules if "{}" in module}) > 1:
        accepted |= (
            known.modules
        )  # T5 has no name in front of its `encoder` and `decoder`, and its classifiers have one
    return any(module.partition(".")[2] in accepted for module in modules)


def _after_number(module: str) -> str:
    """Return the name of a module within its layer, with the number in front of it."""
    return "{}" + module.partition("{}")[2]
