"""Finds layers that lack tensors that their siblings have, or the router of their experts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import Names
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, join_truncated

ROUTER = re.compile(r"(?<!shared_expert)(^|[._])(gate|router)(\.(gate|layer|classifier|linear))?(\.weight)?$")
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
    if stack is None or table is None or table.layers is None:
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


def _blocks(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}
