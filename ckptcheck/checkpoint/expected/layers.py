"""Finds stacks with more or fewer layers than the config declares, or with a gap, and layers that lack tensors."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import MOST_LAYERS
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks, list_kinds
from ckptcheck.checkpoint.layer_blocks import block_of, find_lacking_layers, list_layer_tensors
from ckptcheck.checkpoint.layout import Stack
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.siblings import Names, find_incomplete_layers
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_layers, format_ranges, join_truncated

HINT = "export again; until then transformers initializes it with random numbers"


def find_wrong_depth(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault for each stack with wrong layers: first the language model's."""
    said: set[str] = set()
    main = ckpt.components.stack
    if main is not None and ckpt.components.layers:
        for fault in _find_in_language_model(ckpt, main):
            said.add(main.prefix)
            yield fault
    for prefix, fault in _find_by_own_settings(ckpt):
        if prefix not in said:
            said.add(prefix)
            yield fault
    for prefix, missing in ckpt.layout.gaps.items():
        if prefix not in said and (main is None or prefix != main.prefix):
            stack = ckpt.layout.stacks[prefix]
            last = max(stack.layers)
            yield Fault("missing", _describe_gap(ckpt, stack, len(stack.layers), last, missing))


def _find_in_language_model(ckpt: Checkpoint, stack: Stack) -> Iterator[Fault]:
    """Yield the fault of a language model with another number of layers than the config declares, else with a gap."""
    anatomy, config = ckpt.components, ckpt.config
    numbers = anatomy.layers.keys()
    last = max(numbers)
    declared = config.integer(*anatomy.depth_names) if config is not None else None
    if config is not None and declared is not None and declared > MOST_LAYERS:
        yield Fault("missing", _describe_number(ckpt, config, stack, "", "correct the config"))
    elif config is not None and anatomy.num_layers is not None and last < anatomy.num_layers:
        if missing := set(range(anatomy.num_layers)) - numbers:
            hint = "export again, or correct the config if the layers were removed on purpose"
            yield Fault("missing", _describe_number(ckpt, config, stack, f"; missing: {format_ranges(missing)}", hint))
    elif missing := set(range(min(min(numbers), 1), last)) - numbers:
        yield Fault("missing", _describe_gap(ckpt, stack, len(numbers), last, missing))
    surplus = {layer for layer in numbers if anatomy.num_layers is not None and layer >= anatomy.num_layers}
    if surplus and config is not None:
        problem = Problem(
            f"{config.describe(*anatomy.depth_names)}, but {stack.prefix} has layers beyond that: "
            f"{format_ranges(surplus)}; transformers omits them",
            file=config.file,
            key=config.key_path(*anatomy.depth_names),
            hint="correct the number, or delete the layers if they come from another model",
        )
        yield Fault("surplus", problem)


def _describe_number(ckpt: Checkpoint, config: Config, stack: Stack, rest: str, hint: str) -> Problem:
    """Return the problem of a language model with another number of layers than the config declares."""
    names = ckpt.components.depth_names
    return Problem(
        f"{config.describe(*names)}, but {stack.prefix} has {count(len(ckpt.components.layers), 'layer')}{rest}",
        file=config.file,
        key=config.key_path(*names),
        hint=hint,
    )


def _describe_gap(ckpt: Checkpoint, stack: Stack, number: int, last: int, missing: set[int]) -> Problem:
    """Return the problem of a stack whose numbers have a gap."""
    return Problem(
        f"{stack.prefix} has a gap: {count(number, 'layer')} up to number {last}; missing: {format_ranges(missing)}",
        file=ckpt.file_of(stack.full_name(last)),
        key=stack.full_name(min(missing)),
        hint="export again",
    )


def _find_by_own_settings(ckpt: Checkpoint) -> Iterator[tuple[str, Fault]]:
    """Yield, if there are several stacks, each that differs from its own setting (`encoder_layers`)."""
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None:
        return
    for learned, path in table.depths.items():
        prefix = next((name for name in ckpt.layout.stacks if _simplify(name) == _simplify(learned)), None)
        setting = config.resolved.at(path)
        if prefix is None or setting is None or type(setting.value) is not int:
            continue
        stack = ckpt.layout.stacks[prefix]
        if stack is ckpt.components.stack and setting.value == ckpt.components.num_layers:
            continue
        declared = min(max(setting.value, 0), MOST_LAYERS)
        missing = set(range(declared)) - stack.layers.keys()
        surplus = {layer for layer in stack.layers if layer >= declared}
        if missing or surplus:
            effect = (
                f"transformers initializes the missing ones with random numbers: {format_ranges(missing)}"
                if missing
                else f"transformers omits the others: {format_ranges(surplus)}"
            )
            problem = Problem(
                f"{describe(setting)}, but {prefix} has {count(len(stack.layers), 'layer')}; {effect}",
                file=config.file,
                key=setting.key_path,
                hint="correct the number, or export the encoder again",
            )
            yield prefix, Fault("missing" if missing else "surplus", problem)


def _simplify(prefix: str) -> list[str]:
    """Return the prefix of a stack without the parts that some releases of an architecture have and others omit."""
    return [part for part in prefix.split(".") if part not in ("model", "vision_model")]


def find_torn_layer_faults(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield layers that lack what their siblings have, then, by the architecture, what every layer lacks."""
    for stack in iter_compared_stacks(ckpt):
        lacking: dict[Names, dict[int, list[int]]] = {}
        for layer, (missing, having) in find_torn_layers(ckpt, stack).items():
            lacking.setdefault(missing, {})[layer] = having
        for missing, where in lacking.items():
            first = min(where)
            explained.names |= missing
            explained.torn.setdefault(stack.prefix, set()).update(where)
            problem = Problem(
                f"{stack.prefix}: {format_layers(where)} "
                f"{'lacks' if len(where) == 1 else 'lack'} {join_truncated(missing)}, which "
                f"{format_layers(where[first])} {'has' if len(where[first]) == 1 else 'have'}",
                file=ckpt.file_of(stack.full_name(first)),
                key=stack.full_name(first, min(missing)),
                hint=HINT,
            )
            yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in missing))
    if not ckpt.components.is_draft:  # EAGLE's layer has no norm before its attention
        yield from _find_by_architecture(ckpt, explained)


def _find_by_architecture(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield parts of the blocks that transformers builds and that layers lack, where siblings do not show it."""
    stack, is_family = ckpt.components.stack, family_of(ckpt.config) is not None
    if stack is None or ckpt.config is None:
        return
    layers = {layer: unquantized_names(names) for layer, names in ckpt.components.layers.items()}
    found = find_lacking_layers(layers, list_layer_tensors(ckpt.config, stack.prefix), alike=is_family)
    if not found:
        return
    unlike = find_incomplete_layers(layers, list_kinds(ckpt, stack), alike=ckpt.components.is_language_model)
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, where in found.items():
        lacking = tuple(layer for layer in where if layer not in unlike or name not in unlike[layer][0])
        if lacking and name not in explained.names:
            together.setdefault((block_of(name), lacking), []).append(name)
    explained.names |= found.keys()
    for (block, lacking), names in together.items():
        one = len(lacking) == 1
        is_torn = all(any(block_of(other) == block for other in layers[layer]) for layer in lacking)
        why = (
            f"although {'it has' if one else 'they have'} the rest of the block"
            if block and is_torn
            else f"which transformers builds in every layer of {ckpt.config.architecture}"
        )
        explained.torn.setdefault(stack.prefix, set()).update(lacking)
        problem = Problem(
            f"{stack.prefix}: {format_layers(lacking)} {'lacks' if one else 'lack'} {join_truncated(names)}, {why}",
            file=ckpt.file_of(stack.full_name(lacking[0])),
            key=stack.full_name(lacking[0], names[0]),
            hint=HINT,
        )
        yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in names))
