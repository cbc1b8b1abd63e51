"""Finds layers that lack tensors that their siblings have, or the router of their experts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks
from ckptcheck.checkpoint.layout import Stack
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.shape_formula import fields_of_formula
from ckptcheck.checkpoint.siblings import Names
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, join_truncated

ROUTER = re.compile(r"(?<!shared_expert)(^|[._])(gate|router)(\.(gate|layer|classifier|linear))?(\.weight)?$")
SHARED_EXPERTS = re.compile(r"(^|\.)shared?_(experts?|mlp)(_gate)?\.")
"""Parts of a layer with experts that compute every token."""
SHARES = re.compile(r"(^|\.|_)shared?_expert")
"""Settings that give a layer shared experts: their number, or their width."""
HINT = "export again; until then transformers initializes it with random numbers"


def find_torn_layer_faults(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield layers that lack what their siblings have, then those that lack their router."""
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
    yield from _find_torn_blocks(ckpt, explained)


def _find_torn_blocks(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield layers whose experts lack their router, or the router its experts, or whose dense block lacks a matrix.

    The table of parameters has only what every layer has, or every layer of a listed type.
    """
    stack, table = ckpt.components.stack, WeightsTable.of(ckpt.config)
    if stack is None or table is None:
        return
    yield from _find_lost_shared_experts(ckpt, stack, table, explained)
    if table.layers is None:
        return
    routers = [name for name in table.layers.experts if ROUTER.search(name)]
    dense = {name for name in table.layers.dense if name.endswith(".weight")}
    torn: dict[tuple[str, ...], list[int]] = {}
    for layer, stored in ckpt.components.layers.items():
        names = unquantized_names(stored)
        if any(".experts." in name for name in names):
            missing = routers if len(routers) == 1 and not any(map(ROUTER.search, names)) else []
        elif names.intersection(routers):  # a conversion that found no experts (NVIDIA-NeMo/Megatron-Bridge#4706)
            missing = sorted(name for name in table.layers.experts if ".experts." in name)
        else:
            block = {name for name in names if name.endswith(".weight") and name.partition(".")[0] in _blocks(dense)}
            missing = sorted(dense - names) if block and block < dense else []  # another matrix may be several in one
        if missing and explained.names.isdisjoint(missing):
            torn.setdefault(tuple(missing), []).append(layer)
    for lost, layers in torn.items():
        one = len(layers) == 1
        explained.torn.setdefault(stack.prefix, set()).update(layers)
        problem = Problem(
            f"{stack.prefix}: {format_layers(layers)} {'lacks' if one else 'lack'} {join_truncated(lost)}, although "
            f"{'it has' if one else 'they have'} the rest of the block",
            file=ckpt.file_of(stack.full_name(layers[0])),
            key=stack.full_name(layers[0], lost[0]),
            hint=HINT,
        )
        yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in lost))


def _find_lost_shared_experts(
    ckpt: Checkpoint, stack: Stack, table: WeightsTable, explained: Explained
) -> Iterator[Fault]:
    """Yield the layers with experts that have no shared ones, or parts of them, where a setting of the config asks for them."""
    config = ckpt.config
    formulas = {
        name.partition(".{}.")[2]: formula for name, formula in table.shapes.items() if SHARED_EXPERTS.search(name)
    }
    asked = {field for formula in formulas.values() for field in fields_of_formula(formula) if SHARES.search(field)}
    settings = (
        [setting for field in sorted(asked) if (setting := config.resolved.at(field)) is not None]
        if config is not None and config.resolved is not None
        else []
    )
    if (
        config is None
        or not settings
        or any(type(each.value) is not int or each.value <= 0 or each.source != "config" for each in settings)
    ):
        return
    listed = frozenset(filter(SHARED_EXPERTS.search, table.layers.experts)) if table.layers is not None else frozenset()
    torn: dict[tuple[str, ...], list[int]] = {}
    for layer, stored in ckpt.components.layers.items():
        names = unquantized_names(stored)
        if any(".experts." in name for name in names):
            own = {name for name in names if SHARED_EXPERTS.search(name)}
            missing = sorted(listed - own if own and own < listed else () if own else listed or formulas)
            if missing and explained.names.isdisjoint(missing):
                torn.setdefault(tuple(missing), []).append(layer)
    for lost, layers in torn.items():
        explained.names.update(lost)
        problem = Problem(
            f"{describe(settings[0])}, but {format_layers(layers)} of {stack.prefix} {'lacks' if len(layers) == 1 else 'lack'} "
            f"{join_truncated(lost)}",
            file=config.file,
            key=settings[0].key_path,
            hint=HINT,
        )
        yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in lost))


def _blocks(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}
