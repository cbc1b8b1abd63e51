"""Finds every difference between the stored tensors and those that the model has: causes first, without their consequences.

Each step looks at one kind of cause, and leaves in `Explained` what it has decided. The rules read the list and know nothing of
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_answer
from ckptcheck.checkpoint.expected.ends import find_lost_ends
from ckptcheck.checkpoint.expected.expert_faults import find_expert_faults
from ckptcheck.checkpoint.expected.fault import Explained, Fact, Fault
from ckptcheck.checkpoint.expected.foreign_layout import find_foreign_layout, find_mixed_layouts
from ckptcheck.checkpoint.expected.layer_types import find_layers_of_other_kinds
from ckptcheck.checkpoint.expected.parameters import find_lone_biases, find_lost_outer_tensors, find_unfilled_parameters
from ckptcheck.checkpoint.expected.shapes import find_other_shapes
from ckptcheck.checkpoint.expected.surplus import find_foreign_modules, find_unread_heads
from ckptcheck.checkpoint.expected.switches import find_switched_tensors
from ckptcheck.checkpoint.expected.torn_layers import find_torn_layer_faults
from ckptcheck.checkpoint.expected.wrong_depth import find_wrong_depth
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Problem, Skip

Step = Callable[[Checkpoint, Explained], Iterator[Fault]]
STEPS: tuple[Step, ...] = (
    find_mixed_layouts,
    find_wrong_depth,
    find_expert_faults,
    find_torn_layer_faults,
    find_layers_of_other_kinds,
    find_switched_tensors,
    find_lost_ends,
    find_lost_outer_tensors,
    find_unfilled_parameters,
    find_lone_biases,
    find_foreign_modules,
    find_unread_heads,
    find_other_shapes,
)
"""The steps, each before those whose findings may follow from its own."""


def iter_problems(ckpt: Checkpoint, fact: Fact) -> Iterator[Problem]:
    """Yield the problems of one fact. Raises Skip where transformers was asked itself, or where a shard cannot be read."""
    if (answered := find_answer(ckpt, "transformers")) is not None:
        raise Skip(f"{answered.consumer} was asked itself, and its answer counts (DRY001)")
    if fact in ("missing", "kind"):
        ckpt.require_whole()
    yield from (fault.problem for fault in find_faults(ckpt) if fault.fact == fact)


@remembered
def find_faults(ckpt: Checkpoint) -> tuple[Fault, ...]:
    """Return every difference, in the order of the steps."""
    explained = Explained()
    found = list(find_foreign_layout(ckpt, explained))
    # Where the config is of another model, everything else follows.
    for step in STEPS if not found else ():
        found += step(ckpt, explained)
    return tuple(_fold_renamed(found))


def _fold_renamed(found: list[Fault]) -> Iterator[Fault]:
    """Yield the faults; a surplus module that stands where a missing one should is said with that."""
    surplus = {name for fault in found if fault.fact == "surplus" for name in fault.parameters}
    taken: set[str] = set()
    for fault in found:
        if fault.fact != "missing":
            continue
        places = {_place_of(name) for name in fault.parameters}
        taken |= {name for name in surplus if len(places) == 1 and _place_of(name) in places}
    for fault in found:
        if fault.fact == "surplus" and fault.parameters and fault.parameters <= taken:
            continue
        if fault.fact == "missing":
            places = {_place_of(name) for name in fault.parameters}
            instead = min((name for name in taken if len(places) == 1 and _place_of(name) in places), default=None)
            if instead is not None:
                message = f"{fault.problem.message}; {instead} is stored, for which it has no place"
                yield replace(fault, problem=replace(fault.problem, message=message))
                continue
        yield fault


def _place_of(name: str) -> tuple[str, str]:
    """Return what a tensor keeps where its module is misspelt: the module around it, and its own last part."""
    module, _, last = name.rpartition(".")
    return module.rpartition(".")[0], last
