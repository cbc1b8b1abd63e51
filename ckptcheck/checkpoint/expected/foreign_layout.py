"""Finds a checkpoint whose tensors have the names of another layout or architecture than its config declares."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.absent_parts import find_moved_parts
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.experts import fused_names, iter_numbered_experts
from ckptcheck.checkpoint.layout import INDEX, WRAPPER
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, join_truncated

TEXT_CLASSES = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Suffixes of the classes that put a text head on a language model; all of them give that model the same attribute name."""

MOST_MOVED = 0.9
"""Share of the tensors and of the missing parameters that other prefixes explain; the ends of a model may have their own names."""


def find_foreign_layout(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault if the architecture has none of the stored names, in its layers or anywhere."""
    known, stack = _find_modules(ckpt), ckpt.components.stack
    stored, hint = StoredParameters.of(ckpt), _explain(ckpt)
    if hint is None and stored is not None and (prefix := _find_wrapper(ckpt, stored)) is not None:
        problem = Problem(
            f"all {len(ckpt.tensors):,} tensors are under {prefix}, and without it they have the names of {_name_of(ckpt)}, which "
            "loaders look for",
            file=ckpt.tensor_to_file[next(iter(ckpt.tensors))],
            key=prefix,
            hint=f"remove {prefix}. from the names",
        )
        yield Fault("layout", problem)
        return
    if stored is None and (wrapper := _find_known_wrapper(ckpt)) is not None:
        problem = Problem(
            f"all {len(ckpt.tensors):,} tensors are under {wrapper}, where no class of transformers looks for them",
            file=ckpt.tensor_to_file[next(iter(ckpt.tensors))],
            key=wrapper,
            hint=hint,
        )
        yield Fault("layout", problem)
        return
    if hint is None and stored is not None and _is_moved(ckpt, stored):
        return  # the same names under another prefix: a part is missing, and its fault says where it is
    modules = list_layer_modules(ckpt, known) if known is not None else set()
    if known is not None and stack is not None and modules and not any(map(known.has, modules)):
        is_read = stored is not None and any(stored.is_read(known, f"{one}.weight") for one in modules)
        is_own = known.architecture == _name_of(ckpt)
        if not is_read and (is_own or not _has_relatives_layers(ckpt, known, modules)):
            problem = Problem(
                f"{_name_of(ckpt)} has no layers with these names; transformers initializes the model with "
                f"random numbers: {join_truncated(modules)}",
                file=ckpt.file_of(stack.prefix),
                key=stack.prefix,
                hint=hint or "convert the checkpoint to this architecture's layout, or correct architectures",
            )
            yield Fault("layout", problem)
        return
    if ckpt.config is None or stored is None or not stored.table.needs or not stored.table.needs <= stored.absent:
        return
    names = [alike[0] for alike in ckpt.layout.names_by_template.values()]
    if (
        known is not None
        and known.architecture == _name_of(ckpt)
        and all(known.module(n) in known.modules for n in names)
    ):
        return  # all are its own names: most are missing, and the fault of missing ones says so
    problem = Problem(
        "no stored name is one that transformers looks for: it builds "
        f"{join_truncated(sorted(stored.table.needs))}, of random numbers, and finds {next(iter(ckpt.tensors))}",
        file=ckpt.config.file,
        key="architectures",
        hint=hint or "convert the checkpoint to this architecture's layout, or correct architectures",
    )
    yield Fault("layout", problem)


def _find_wrapper(ckpt: Checkpoint, stored: StoredParameters) -> str | None:
    """Return the one or two words in front of all names without which they fill nearly all parameters; None for none."""
    needs = stored.table.needs
    if not needs or 2 * len(stored.absent) < len(needs):
        return None
    names = [names[0] for names in ckpt.layout.names_by_template.values()]
    first = names[0].split(".")
    found: dict[str, int] = {}
    for prefix in (first[0], ".".join(first[:2])):
        if first[0] == stored.table.base or not all(name.startswith(f"{prefix}.") for name in names):
            break
        bare = [name.removeprefix(f"{prefix}.") for name in names]
        filled = {INDEX.sub("{}", target) for name in bare for target in stored.table.name_parameters(name)}
        if len(stored.absent - filled) <= (1 - MOST_MOVED) * len(stored.absent):
            found[prefix] = len(needs.intersection(INDEX.sub("{}", name) for name in bare))
    # transformers also finds names without its own prefix, or with it twice: the right ones are those of the parameters
    return max(found, key=lambda prefix: found[prefix], default=None)


def _find_known_wrapper(ckpt: Checkpoint) -> str | None:
    """Return the module that wraps a model in training, if it stands in front of all names of a class of transformers."""
    if ckpt.config is None or ckpt.config.resolved is None or "auto_map" in ckpt.config.value:
        return None
    found = {match[0] if (match := WRAPPER.match(name)) is not None else "" for name in ckpt.layout.names_by_template}
    return found.pop() or None if len(found) == 1 else None


def _is_moved(ckpt: Checkpoint, stored: StoredParameters) -> bool:
    """Whether nearly all tensors are those of the architecture under other prefixes, and nearly none are missing then."""
    depth = ckpt.config.number(*ckpt.components.depth_names) if ckpt.config is not None else None
    if depth is not None and depth != len(ckpt.components.layers):
        return False  # another model
    parts = find_moved_parts(ckpt, stored, stored.absent)
    tensors = sum(len(part.tensors) for part in parts)
    parameters = sum(len(part.parameters) for part in parts)
    return tensors >= MOST_MOVED * len(ckpt.tensors) and parameters >= MOST_MOVED * len(stored.absent)


def _explain(ckpt: Checkpoint) -> str | None:
    """Return what to do about names that tell who wrote them; None for all others."""
    names = [alike[0] for alike in ckpt.layout.names_by_template.values()]
    if any(".base_layer." in name for name in names) and any(".lora_A." in name for name in names):
        return "the adapter beside the weights was never merged: save what PEFT's merge_and_unload() returns"
    if any(name.endswith("_flat_param") for name in names):
        return (
            "these are FSDP's flat parameters: save a full state dict, or merge the ranks with the trainer's own tool"
        )
    found = next((match for name in names if (match := WRAPPER.search(name))), None)
    return f"remove {found[0]}. from the names: a wrapper put it there" if found is not None else None


def find_mixed_layouts(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault where some layers store experts one by one, and others fused."""
    stack = ckpt.components.stack
    single = {layer for layer, *_ in iter_numbered_experts(ckpt.components)}
    fused = dict(fused_names(ckpt.components))
    if stack is None or not single or not fused:
        return
    first = stack.full_name(min(fused), fused[min(fused)])
    problem = Problem(
        f"experts are stored one by one in {format_layers(single)}, fused into one tensor in {format_layers(fused)}; "
        "loaders expect one layout",
        file=ckpt.tensor_to_file[first],
        key=first,
        hint="convert all layers to one layout",
    )
    yield Fault("layout", problem)


def list_layer_modules(ckpt: Checkpoint, known: KnownModules) -> set[str]:
    """Return the modules in the language model's layers, with {} for each number."""
    stack = ckpt.components.stack
    if stack is None:
        return set()
    return {
        known.module(stack.full_name(layer, name)) for layer, names in ckpt.components.layers.items() for name in names
    }


def _find_modules(ckpt: Checkpoint) -> KnownModules | None:
    """Return the modules of the architecture, else those of a relative with the same layers that the tables know."""
    known, table = KnownModules.of(ckpt.config), WeightsTable.of(ckpt.config)
    if known is not None or table is None or not table.required or ckpt.config is None:
        return known
    bases = frozenset(module.partition(".")[0] for module in table.modules)
    return KnownModules(table.architecture, table.modules, bases)


def _name_of(ckpt: Checkpoint) -> str | None:
    return ckpt.config.architecture if ckpt.config is not None else None


def _has_relatives_layers(ckpt: Checkpoint, known: KnownModules, modules: set[str]) -> bool:
    """Whether a relative has the same layers, in a place where a class for another task may have them.

    A class may name its model differently: LlamaForQuestionAnswering has `transformer` where LlamaForCausalLM has `model`. A
    text classifier has that one name in front of the layers and no more. For other classes, and for a config that nests its
    language model's config, the names in front are unknown.
    """
    resolved = ckpt.config.resolved if ckpt.config is not None else None
    is_nested = resolved is not None and resolved.text is not resolved.top
    if is_nested or not (_name_of(ckpt) or "").endswith(TEXT_CLASSES):
        inside = {_after_number(module) for module in known.modules}
        return any(_after_number(module) in inside for module in modules)
    accepted = {module.partition(".")[2] for module in known.modules}
    if len({module.partition(".")[0] for module in known.modules if "{}" in module}) > 1:
        accepted |= known.modules  # T5 has no name in front of its `encoder` and `decoder`; its classifiers have one
    return any(module.partition(".")[2] in accepted for module in modules)


def _after_number(module: str) -> str:
    """Return the name of a module within its layer, with the number in front of it."""
    return "{}" + module.partition("{}")[2]
