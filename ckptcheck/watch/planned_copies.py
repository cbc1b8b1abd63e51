"""Plans before a sync which bytes the watch copies of each tensor, from the tensors of earlier syncs.

A sync moves a whole model, which evicts the watch's code and data from the processor's caches between two tensors. The same Python
line then takes many times as long as in a loop before the sync. So the watch decides in that loop all that it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ckptcheck.watch.schedule import Schedule

ChooseRows = Callable[[str, Any, Any], tuple[slice | None, Any]]
"""Name, shape and dtype of a tensor → the rows to copy (None for all), and the engine's dtype if it casts them (else None)."""


class PlannedCopy(NamedTuple):
    """The bytes to copy of one tensor, if it has the same type, shape and dtype as before and is contiguous in host memory."""

    kind: Any
    """The type of the tensor."""
    shape: Any
    dtype: Any
    begin: int
    """Offset of the first byte to copy."""
    nbytes: int
    """Bytes to copy."""
    whole: int
    """Bytes of the whole tensor."""
    rows: slice | None
    """The rows that these bytes hold, None for all."""
    cast: Any
    """The engine's dtype, if it casts the tensor: the watch then digests the rows in both dtypes."""


class CopyPlan:
    """The planned copies of the tensors whose turn it is. One plan serves the two syncs that look at the same rows."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type, Any, Any]] = {}
        """Name → type, shape and dtype of the last tensor of this name."""
        self._copies: Mapping[str, PlannedCopy] = {}
        self._made_for: tuple[object, ...] = ()

    def note(self, name: str, tensor: Any) -> None:
        """Remember the type, shape and dtype of a tensor that has no plan yet."""
        self._known[name] = (type(tensor), tensor.shape, tensor.dtype)

    def list_copies(self, schedule: Schedule, choose_rows: ChooseRows) -> Mapping[str, PlannedCopy]:
        """Return name → copy for the sync that the schedule has begun."""
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
