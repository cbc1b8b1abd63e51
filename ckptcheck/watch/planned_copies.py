"""What a watch copies of each tensor that is sent, decided before a sync from what was sent before.

A sync moves whole models, so between two of its tensors the processor has next to nothing of the watch in its caches: a step there
takes many times as long as in a loop before the sync. What can be decided there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ckptcheck.watch.schedule import Schedule

ChooseRows = Callable[[str, Any, Any], tuple[slice | None, Any]]
"""By name, shape and dtype of a tensor: the rows to look at, None for all, and the dtype to which to cast them too, or None."""


class PlannedCopy(NamedTuple):
    """The bytes to copy of one tensor, if it comes as it came before and lies in one piece in the host's memory."""

    kind: Any
    """The type of the tensor."""
    shape: Any
    dtype: Any
    begin: int
    """Bytes before those to copy."""
    nbytes: int
    """Bytes to copy."""
    whole: int
    """Bytes of the tensor."""
    rows: slice | None
    """The rows that these bytes are, None for all."""
    cast: Any
    """The dtype of the engine, where it casts the tensor and these rows are looked at in both."""


class CopyPlan:
    """The planned copies of the tensors whose turn it is. A plan is kept for the two syncs that look at the same rows."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type, Any, Any]] = {}
        """Name → type, shape and dtype of the tensor that came last."""
        self._copies: Mapping[str, PlannedCopy] = {}
        self._made_for: tuple[object, ...] = ()

    def note(self, name: str, tensor: Any) -> None:
        """Note what a tensor is like that came without a plan."""
        self._known[name] = (type(tensor), tensor.shape, tensor.dtype)

    def list_copies(self, schedule: Schedule, choose_rows: ChooseRows) -> Mapping[str, PlannedCopy]:
        """Return name → copy for the sync that a schedule has begun."""
        made_for = (schedule.group, schedule.groups, schedule.part, schedule.parts, len(self._known))
        if made_for != self._made_for:
            self._made_for = made_for
            self._copies = {
                name: _plan_copy(choose_rows, name, *known)
                for name, known in self._known.items()
                if schedule.includes(name)
            }
        return self._copies


def _plan_copy(choose_rows: ChooseRows, name: str, kind: type, shape: Any, dtype: Any) -> PlannedCopy:
    rows, cast = choose_rows(name, shape, dtype)
    begin, nbytes = 0, shape.numel() * dtype.itemsize
    whole = nbytes
    if rows is not None:
        row = whole // shape[0]
        begin, nbytes = rows.start * row, (rows.stop - rows.start) * row
    return PlannedCopy(kind, shape, dtype, begin, nbytes, whole, rows, cast)
