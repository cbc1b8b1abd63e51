"""Reads a pickled DTensor, without PyTorch: the part of one rank, and how the ranks of a mesh share the whole.

`torch.save` spells it as ``_rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor, …, (None, {"_local_tensor", "_spec"}))``; the
spec has `mesh`, `placements` (one for each axis of the mesh) and `tensor_meta`. An `AsyncCollectiveTensor`, the result of a
running collective, is spelled alike, with `elem`. Source: PyTorch 2.13 torch/distributed/tensor/_api.py, _dtensor_spec.py,
placement_types.py, torch/distributed/device_mesh.py, _mesh_layout.py and _functional_collectives.py; until 2.8 the mesh is a
tensor, and until 2.4 the modules begin with torch.distributed._tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.checkpoint.unpickle import ObjectStub

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODULES = re.compile(r"torch\.distributed\.(_?tensor|device_mesh|_mesh_layout)(\.\w+)*")
"""Modules whose classes describe a DTensor."""
WRAPPERS = frozenset(
    (
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch._utils", "_rebuild_wrapper_subclass"),
        ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"),
    )
)
"""Functions by which `torch.save` spells a tensor subclass, and one such class."""


@dataclass(frozen=True)
class Placement:
    """How one axis of the mesh shares a tensor."""

    kind: Literal["shard", "replicate", "partial"]
    """shard: each rank has a part along `axis`; replicate: each has all; partial: `reduction` over all ranks gives the whole."""
    axis: int | None = None
    """Axis of the tensor, for shards."""
    reduction: str = ""
    """``sum``, ``avg``, ``max``, …, for partial ones."""


@dataclass(frozen=True)
class DistributedTensor:
    """The part of a tensor that one rank has."""

    local: NDArray[Any]
    placements: tuple[Placement, ...]
    """One for each axis of the mesh."""
    mesh: tuple[int, ...]
    """Number of ranks along each axis of the mesh."""
    coordinates: tuple[int, ...] | None
    """The rank's place in the mesh; None if the file does not give it."""

    @property
    def column_shards(self) -> int:
        """How many ranks share the last axis."""
        last = self.local.ndim - 1
        return prod(
            size
            for size, placement in zip(self.mesh, self.placements, strict=True)
            if placement.kind == "shard" and placement.axis in (last, -1)
        )


@dataclass(frozen=True)
class RankShard:
    """The place of one rank's part in the whole tensor, known before any element is read."""

    local: Any
    """The part, as the pickle describes it."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    origin: tuple[int, ...]
    """Index of the part's first element in the whole."""
    is_copy: bool
    """Whether another rank has the same part, and comes first in the mesh."""
    ranks: int
    """How many ranks the mesh has."""


def is_distributed_global(module: str, name: str) -> bool:
    """Whether a global belongs to the description of a DTensor: a class in MODULES, or one of WRAPPERS."""
    return (module, name) in WRAPPERS or (
        MODULES.fullmatch(module) is not None and name.lstrip("_")[:1].isupper() and name.isidentifier()
    )


def parse_distributed_tensor(stub: ObjectStub, plain: Callable[[Any], Any]) -> DistributedTensor | NDArray[Any] | None:
    """Return the tensor that a call of `_rebuild_from_type_v2` describes; None for anything else.

    plain: converts what the pickle describes; tensors become arrays. Raises AttributeError, LookupError, TypeError and ValueError
    for a description that PyTorch does not write.
    """
    import numpy as np

    if not stub.name.endswith("._rebuild_from_type_v2") or len(stub.arguments) != 4:
        return None
    _, kind, _, state = stub.arguments
    name = str(getattr(kind, "name", "")).rpartition(".")[2]
    own_field = {"DTensor": "_spec", "AsyncCollectiveTensor": "elem"}.get(name)
    if own_field is None:
        return None
    parts = state if isinstance(state, tuple) else (state,)
    fields = next(part for part in parts if isinstance(part, dict) and own_field in part)
    if own_field == "elem":
        whole: NDArray[Any] = plain(fields["elem"])
        return whole
    spec = fields["_spec"].state
    mesh = spec["mesh"].state
    local = plain(fields["_local_tensor"])
    placements = tuple(map(_read_placement, spec["placements"]))
    sizes = _read_mesh(mesh, plain)
    if not isinstance(local, np.ndarray) or len(sizes) != len(placements):
        raise ValueError("a DTensor has a placement for each axis of its mesh")
    coordinates = mesh.get("_coordinate_on_dim")
    is_known = isinstance(coordinates, (list, tuple)) and len(coordinates) == len(sizes)
    return DistributedTensor(local, placements, sizes, tuple(map(int, coordinates)) if is_known else None)


def describe_shard(stub: ObjectStub) -> RankShard | None:
    """Return the part of a DTensor that a rank has; None if the pickle does not give it, or cuts it not by whole rows.

    Each axis of the mesh splits the parts of the axes before it, as `torch.chunk` does: equal sizes, rounded up, and the last
    parts may be smaller or empty (torch/distributed/tensor/_utils.py `compute_local_shape_and_global_offset`).
    """
    try:
        state = stub.arguments[-1]
        parts = state if isinstance(state, tuple) else (state,)
        fields = next(part for part in parts if isinstance(part, dict) and "_spec" in part)
        spec, local = fields["_spec"].state, fields["_local_tensor"]
        mesh = spec["mesh"].state
        sizes, coordinates = _read_mesh(mesh, lambda tensor: tensor), mesh["_coordinate_on_dim"]
        shape = tuple(map(int, spec["tensor_meta"].arguments[0]))
        placements = [(each, _read_placement(each)) for each in spec["placements"]]
        origin, extent, is_copy = [0] * len(shape), list(shape), False
        for (stub_of, placement), size, place in zip(placements, sizes, coordinates, strict=True):
            if placement.kind == "replicate":
                is_copy = is_copy or place > 0
                continue
            if placement.kind != "shard" or placement.axis is None or stub_of.name.endswith("._StridedShard"):
                return None
            axis = range(len(shape))[placement.axis]
            chunk = -(-extent[axis] // size)
            begin = min(chunk * place, extent[axis])
            origin[axis] += begin
            extent[axis] = min(chunk, extent[axis] - begin)
        if tuple(local.shape) != tuple(extent):
            return None
        return RankShard(local, shape, tuple(origin), is_copy, prod(sizes))
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration, OverflowError, ZeroDivisionError):
        return None


def _read_placement(stub: ObjectStub) -> Placement:
    name = stub.name.rpartition(".")[2]
    state = stub.state if isinstance(stub.state, dict) else {}
    if name in ("Shard", "_StridedShard"):
        return Placement("shard", axis=int(state["dim"]))
    if name in ("Partial", "_Partial", "_NormPartial", "_MaskPartial"):
        return Placement("partial", reduction=str(state.get("reduce_op", "sum")))
    if name == "Replicate":
        return Placement("replicate")
    raise ValueError(f"{name} is no placement that is known")


def _read_mesh(mesh: dict[str, Any], plain: Callable[[Any], Any]) -> tuple[int, ...]:
    """Return the number of ranks along each axis of a mesh."""
    if "_layout" not in mesh:
        return tuple(plain(mesh["mesh"]).shape)
    layout = mesh["_layout"].state
    if "axes" not in layout:
        return tuple(_count(size) for size in _as_tuple(layout["shape"]))
    return tuple(_count(axis.state["shape"]) for axis in layout["axes"])


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _count(size: Any) -> int:
    """Return the product of nested sizes: an axis may be made of several."""
    return prod(map(_count, size)) if isinstance(size, tuple) else int(size)
