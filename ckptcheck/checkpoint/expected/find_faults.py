"""Finds every difference between the stored tensors and those that the model has: causes first, without their consequences.

Each step looks at one kind of cause, and notes in `Explained` what it has decided. The rules read the list and know nothing
of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.dry_load_problems import find_answer
from ckptcheck.checkpoint.expected.absent_parts import find_absent_parts
from ckptcheck.checkpoint.expected.ends import find_lost_ends
from ckptcheck.checkpoint.expected.expert_faults import find_expert_faults
from ckptcheck.checkpoint.expected.fault import Explained, Fact, Fault, place_of
from ckptcheck.checkpoint.expected.foreign_layout import find_foreign_layout, find_mixed_layouts
from ckptcheck.checkpoint.expected.parameters import find_unfilled_parameters
from ckptcheck.checkpoint.expected.rank_shards import find_rank_shards
from ckptcheck.checkpoint.expected.shapes import find_other_shapes
from ckptcheck.checkpoint.expected.stored_parameters import StoredParameters
from ckptcheck.checkpoint.expected.surplus import find_foreign_modules, find_unread_heads
from ckptcheck.checkpoint.expected.switches import find_switched_tensors
from ckptcheck.checkpoint.expected.torn_layers import find_torn_layer_faults
from ckptcheck.checkpoint.expected.wrong_depth import find_wrong_depth
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Problem, Skip

Step = Callable[[Checkpoint, Explained], Iterator[Fault]]
STEPS: tuple[Step, ...] = (
    find_mixed_layouts,
    find_absent_parts,
    find_wrong_depth,
    find_expert_faults,
    find_torn_layer_faults,
    find_switched_tensors,
    find_lost_ends,
    find_unfilled_parameters,
    find_foreign_modules,
    find_unread_heads,
    find_rank_shards,
    find_other_shapes,
)
"""The steps, causes before consequences."""
RENAMED = "give {} the name of the missing one, or export again"


def iter_problems(ckpt: Checkpoint, fact: Fact) -> Iterator[Problem]:
    """Yield the problems of one fact. Raises Skip if a dry load asks transformers itself, or if a shard cannot be read."""
    answered = find_answer(ckpt, "transformers")
    if fact == "missing":
        ckpt.require_whole()
    for fault in find_faults(ckpt):
        if fault.fact == fact and (answered is None or fault.is_of_engines):
            yield fault.problem
    if answered is not None:
        raise Skip(f"{answered.consumer} itself was asked to load it: DRY001 has its answer")


@remembered
def find_faults(ckpt: Checkpoint) -> tuple[Fault, ...]:
    """Return every difference, in the order of the steps."""
    explained = Explained()
    found = list(find_foreign_layout(ckpt, explained))
    # If the config belongs to another model, every other difference is a consequence.
    for step in STEPS if not found else ():
        found += step(ckpt, explained)
    return tuple(_fold_renamed(ckpt, found))


def _fold_renamed(ckpt: Checkpoint, found: list[Fault]) -> Iterator[Fault]:
    """Yield the faults; fold a surplus module into the missing one whose place it has taken."""
    stored = StoredParameters.of(ckpt)

    def list_places(name: str) -> set[tuple[str, str]]:
        return {*map(place_of, (name, *(stored.table.name_parameters(name) if stored is not None else ())))}

    surplus = {
        place: name
        for fault in found
        if fault.fact == "surplus"
        for name in sorted(fault.parameters)
        for place in list_places(name)
    }
    missing = {place for fault in found if fault.fact == "missing" and (place := _find_place(fault)) is not None}
    for fault in found:
        if (
            fault.fact == "surplus"
            and fault.parameters
            and all(list_places(name) & missing for name in fault.parameters)
        ):
            continue
        place = _find_place(fault)
        if fault.fact == "missing" and place in surplus:
            message = f"{fault.problem.message}; {surplus[place]} is stored, for which it has no place"
            yield structs.replace(
                fault, problem=structs.replace(fault.problem, message=message, hint=RENAMED.format(surplus[place]))
            )
        else:
            yield fault


def _find_place(fault: Fault) -> tuple[str, str] | None:
    """Return the place of a fault's parameters; None where they have none, or several."""
    places = {*map(place_of, fault.parameters)}
    return places.pop() if len(places) == 1 else None
