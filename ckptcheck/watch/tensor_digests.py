"""Digests tensors that pass a watch: at once where they lie, or later from a copy of the few bytes that count."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.worker.ckptcheck_worker.tensor_copies import (
    cast_pieces,
    copy_from_host,
    copy_tensor,
    has_plain_memory,
    move_to_host,
    view_bytes,
)
from ckptcheck.watch.planned_copies import PlannedCopy

if TYPE_CHECKING:
    from numpy.typing import NDArray

Weights = Iterable[tuple[str, Any]]
"""Pairs of a name with a torch tensor, a numpy array or a digest."""
COPIED = 2 << 20
"""Largest tensor, in bytes, to copy and digest later; a larger one is digested where it lies, so that copies stay small."""
MOST_COPIED = 512 << 20
"""Bytes of all copies of one side of a sync: memory that the job has to spare while the checks wait."""
MOST_ON_DEVICE = 16 << 20
"""Bytes of copies on a GPU before they move to the host's memory: the job uses nearly all of a GPU's memory."""


def digest_tensor(tensor: Any) -> str:
    """Digest a torch tensor on its own device, or a numpy array; equal bytes give equal digests."""
    if hasattr(tensor, "data_ptr"):
        from ckptcheck.live.runtime.worker.ckptcheck_worker.digest import digest as of_torch

        return of_torch(tensor)
    from ckptcheck.live.runtime.engines.digest import digest as of_numpy

    return of_numpy(tensor)


def digests(weights: Weights) -> Mapping[str, str]:
    """Return name → digest, to send to the rank that keeps the record."""
    return {name: digest_tensor(tensor) for name, tensor in weights}


def digest_rows(tensor: Any, rows: slice) -> str:
    """Digest some rows of a torch tensor or a numpy array: equal bytes give equal digests, also on another device.

    `digest_tensor` gives the same bytes another digest. This one takes less time for the few rows that a schedule chooses.
    """
    part = tensor[rows]
    if hasattr(part, "data_ptr"):
        from ckptcheck.live.runtime.worker.ckptcheck_worker.digest import copy_bytes

        part = copy_bytes(part)
    return _digest_bytes(part)


def _digest_bytes(array: NDArray[Any]) -> str:
    return hashlib.blake2b(array.data if array.flags.c_contiguous else array.tobytes(), digest_size=16).hexdigest()


class SyncDigests:
    """The digests of one side of a sync, by name.

    defers: take copies of small torch tensors, and of the rows that were chosen of others, and digest them only in `compute`,
    which may run in another thread: it uses no device. Everything else is digested at once.
    """

    def __init__(self, *, defers: bool) -> None:
        self._defers = defers
        self._digests: dict[str, str] = {}
        self._copies: list[tuple[str, bool, Any]] = []
        """Name, whether the copy has some rows only, and the copy: bytes, or a tensor on its own device."""
        self._to_cast: dict[str, tuple[Any, Any]] = {}
        """Name of a tensor that the engine casts → its dtype, and the engine's."""
        self.casts: dict[str, str] = {}
        """Name of such a tensor → digest of its rows after the same cast; filled by `compute`."""
        self._copied = self._on_device = 0
        self.nbytes = 0
        """Bytes of the whole tensors, also if only some rows were digested."""

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, name: str, tensor: Any, rows: slice | None = None, *, prefix: str = "", cast: Any = None) -> None:
        """Add a tensor, or some rows of it.

        prefix: of its digest; it is then digested at once. cast: the torch dtype to which to cast these rows for a second digest.
        """
        self.nbytes += tensor.nbytes
        if not prefix and self.copy_rows(name, tensor, rows, cast=cast):
            return
        if self._defers and not prefix and hasattr(tensor, "data_ptr") and (device := tensor.device.type) != "meta":
            part = tensor if rows is None else tensor.narrow(0, rows.start, rows.stop - rows.start)
            nbytes = part.nbytes
            if nbytes <= COPIED and self._copied + nbytes <= MOST_COPIED:
                self._copy(name, part, rows is not None)
                if cast is not None and rows is not None:
                    self._to_cast[name] = (tensor.dtype, cast)
                self._copied += nbytes
                if device != "cpu":
                    self._on_device += nbytes
                    if self._on_device > MOST_ON_DEVICE:
                        self.move_to_host()
                return
        self._digests[name] = prefix + (digest_tensor(tensor) if rows is None else digest_rows(tensor, rows))
        if cast is not None and rows is not None:
            self.casts[name] = digest_rows(tensor[rows].to(cast), slice(None))

    def copy_rows(
        self,
        name: str,
        tensor: Any,
        rows: slice | None,
        place: tuple[Sequence[int], int] | None = None,
        *,
        cast: Any = None,
    ) -> bool:
        """Copy some rows of a tensor in the host's memory, to be digested later; return whether that could be done.

        It is `add` in few steps, for what lies in one piece. place: shape of a part of the tensor that lies in one piece, and the
        elements before it; None for all of it, which counts for `nbytes` in `add` already.
        """
        kind: Any = type(tensor)
        if not self._defers or not has_plain_memory(kind):
            return False
        if place is None:
            if not tensor.is_contiguous():
                return False
            shape, offset = tensor.shape, 0
        else:
            shape, offset = place
        itemsize = tensor.element_size()
        nbytes = whole = math.prod(shape) * itemsize
        begin = offset * itemsize
        if rows is not None:
            row = whole // shape[0]
            begin, nbytes = begin + rows.start * row, (rows.stop - rows.start) * row
        if not self._keep(name, tensor, begin, nbytes, has_rows=rows is not None):
            return False
        if place is not None:
            self.nbytes += whole
        if cast is not None and rows is not None:
            self._to_cast[name] = (tensor.dtype, cast)
        return True

    def copy_planned(self, name: str, tensor: Any, plan: PlannedCopy) -> bool:
        """Copy the planned bytes; return False if the tensor does not fit the plan. It counts for `nbytes`, as in `add`."""
        if (
            type(tensor) is not plan.kind
            or tensor.shape != plan.shape
            or tensor.dtype is not plan.dtype
            or not tensor.is_contiguous()
            or not self._keep(name, tensor, plan.begin, plan.nbytes, has_rows=plan.rows is not None)
        ):
            return False
        self.nbytes += plan.whole
        if plan.cast is not None and plan.rows is not None:
            self._to_cast[name] = (plan.dtype, plan.cast)
        return True

    def casts_too(self, name: str) -> bool:
        """Return whether the rows of a tensor are digested a second time as the engine casts them."""
        return name in self._to_cast or name in self.casts

    def _keep(self, name: str, tensor: Any, begin: int, nbytes: int, *, has_rows: bool) -> bool:
        """Copy bytes of a tensor, unless they are too many or not in the host's memory; return whether it did."""
        if nbytes > COPIED or self._copied + nbytes > MOST_COPIED:
            return False
        copy = copy_from_host(tensor, begin, nbytes)
        if copy is None:
            return False
        # the name keeps its place among those that are digested at once
        self._digests[name] = ""
        self._copies.append((name, has_rows, copy))
        self._copied += nbytes
        return True

    def add_digests(self, digests: Mapping[str, str]) -> None:
        """Add digests that the job computed itself."""
        self._digests.update(digests)

    def clear(self) -> None:
        """Drop everything: a part of the digests would look as if the rest had not been sent."""
        self._digests, self._copies, self._to_cast, self.casts, self.nbytes = {}, [], {}, {}, 0

    def _copy(self, name: str, part: Any, has_rows: bool) -> None:
        # the name keeps its place among those that are digested at once
        self._digests[name] = ""
        self._copies.append((name, has_rows, copy_tensor(part)))

    def move_to_host(self) -> None:
        """Move copies from their devices into the host's memory, in one transfer a device. Call it before `compute`."""
        if not self._on_device:
            return
        self._on_device = 0
        tensors = [(place, copy) for place, (*_, copy) in enumerate(self._copies) if not isinstance(copy, bytes)]
        for device in {copy.device for _, copy in tensors if copy.device.type != "cpu"}:
            places = [place for place, copy in tensors if copy.device == device]
            moved = move_to_host([self._copies[place][2] for place in places])
            for place, copy in zip(places, moved, strict=True):
                self._copies[place] = (*self._copies[place][:2], copy)

    def compute(self) -> dict[str, str]:
        """Return name → digest, and free the copies."""
        copies, self._copies = self._copies, []
        for name, has_rows, copy in copies:
            self._digests[name] = _digest_copy(copy, has_rows)
            if name in self._to_cast:
                self.casts[name] = _digest_cast(copy, *self._to_cast[name])
        return self._digests


def _digest_copy(copy: Any, has_rows: bool) -> str:
    """Return the digest that `digest_rows` or `digest_tensor` gives these bytes."""
    from ckptcheck.live.runtime.engines.digest import digest

    array = view_bytes(copy)
    return _digest_bytes(array) if has_rows else digest(array)


def _digest_cast(copy: Any, dtype: Any, cast: Any) -> str:
    """Return the digest that `digest_rows` gives the engine's tensor, if the engine casts the elements of this copy."""
    state = hashlib.blake2b(digest_size=16)
    for piece in cast_pieces(copy, dtype, cast):
        state.update(piece.data)
    return state.hexdigest()
