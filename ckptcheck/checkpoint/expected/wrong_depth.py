"""Finds stacks with more or fewer layers than the config declares, or with a gap."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import MOST_LAYERS
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.layout import Stack
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_ranges


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
