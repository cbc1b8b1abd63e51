"""The expected, actual and previous tensors of a diagnosis. Each tensor is read when a cause asks for it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.tensor_name import (
    INTERLEAVED,
    TensorName,
    list_fused_members,
    parse_tensor_name,
)
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

USUAL_TP = (2, 4, 8, 16, 32, 64)
USUAL_HEAD_DIM = (128, 64, 256, 96, 80, 32, 192, 16, 8)


def tp_sizes(length: int) -> list[int]:
    """Return the usual numbers of tensor-parallel ranks that divide `length` rows or columns, fewest first."""
    return [ranks for ranks in USUAL_TP if 1 < ranks <= length and length % ranks == 0]


class AttentionGeometry(msgspec.Struct, frozen=True):
    """The known dimensions of a model's attention. The diagnosis tries the usual values of a number that is None."""

    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None

    def candidate_head_dims(self, rows: int) -> list[int]:
        """Return the numbers of rows that one attention head may have in a tensor of `rows` rows."""
        return [
            size
            for size in ((self.head_dim,) if self.head_dim else USUAL_HEAD_DIM)
            if 2 <= size <= rows and rows % size == 0
        ]

    def candidate_kv_heads(self, query: int, key: int) -> list[int]:
        """Return the possible numbers of KV heads, given the rows of the query and of the key."""
        if self.kv_heads:
            return [self.kv_heads] if key % self.kv_heads == 0 and query % self.kv_heads == 0 else []
        return [
            key // size
            for size in self.candidate_head_dims(key)
            if query % (key // size) == 0 and (query // (key // size)) % size == 0
        ]


class TensorBits(msgspec.Struct, frozen=True, eq=False):
    """A tensor as bit patterns, because equality is of bits: a NaN equals itself, and 0 differs from -0."""

    # As safetensors names it.
    dtype: str
    # Unsigned integers in the tensor's shape.
    patterns: NDArray[Any]

    @classmethod
    def read(cls, ckpt: Checkpoint, name: str) -> TensorBits:
        """Read a tensor of a checkpoint. Raises EvidenceError where the file cannot be read."""
        tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
        raw = ckpt.source.read(shard.name, shard.locate(name), tensor.nbytes)
        return cls(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(tensor.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.patterns.shape

    @property
    def matrix(self) -> NDArray[Any]:
        """The patterns as [rows, columns]: a vector is one column; further dimensions are flattened into columns."""
        shape = self.patterns.shape
        rows = shape[0] if shape else 1
        return self.patterns.reshape(rows, -1) if self.patterns.size else self.patterns.reshape(rows, 0)


SourceName = Literal["expected", "actual", "previous"]
Readers = Mapping[str, Callable[[], TensorBits]]
CACHE_BYTES = 1 << 27
"""Bytes of tensors that stay in memory for the next cause."""


class TensorKey(msgspec.Struct, frozen=True):
    """The unit of one explanation: a tensor, the members of a fused tensor, or one expert of a stacked tensor."""

    # In the order of the fused tensor.
    names: tuple[str, ...]
    # The parsed name of the first.
    parsed_name: TensorName
    # q, k and v together are ``qkv``, gate and up ``gate_up``.
    part: str
    # Index within a stacked tensor.
    expert: int | None = None

    @property
    def label(self) -> str:
        """The name without layer and expert: ``self_attn.q_proj.weight``; of several members ``mlp.gate_proj+up_proj.weight``."""
        labels = [parse_tensor_name(name).label for name in self.names]
        if len(labels) == 1:
            return labels[0]
        words = [label.split(".") for label in labels]
        return ".".join("+".join(dict.fromkeys(parts)) for parts in zip(*words, strict=True))

    def at(self, layer: int | None, expert: int | None) -> TensorKey:
        """Return the key of the same tensors in another layer and expert."""
        stacked = self.expert is not None
        parsed_names = [parse_tensor_name(name) for name in self.names]
        names = tuple(place.with_numbers(layer, None if stacked else expert) for place in parsed_names)
        return TensorKey(names, parse_tensor_name(names[0]), self.part, expert if stacked else None)

    def for_member(self, name: str) -> TensorKey:
        """Return the key of one member."""
        place = parse_tensor_name(name)
        return TensorKey((name,), place, place.part, self.expert)

    @property
    def expert_index(self) -> int | None:
        """The expert's number, from the stacked tensor or from the name."""
        return self.expert if self.expert is not None else self.parsed_name.expert


@dataclass(frozen=True)
class DiagnosisInput:
    """The tensors of a diagnosis: name → a function that reads it.

    A name that is only in `expected` is missing. Readers may raise OSError or a CkptcheckError; both propagate.
    """

    expected: Readers
    actual: Readers
    # The previous version, if known.
    previous: Readers = field(default_factory=dict)
    geometry: AttentionGeometry = field(default_factory=AttentionGeometry)
    # Name → the name that the other side stores.
    other_names: Mapping[str, str] = field(default_factory=dict)
    _cache: OrderedDict[tuple[SourceName, str], TensorBits] = field(
        default_factory=OrderedDict, repr=False, compare=False
    )

    def read(self, side: SourceName, name: str) -> TensorBits | None:
        """Read a tensor; None if this side has none of that name. The last tensors stay in memory."""
        readers: Readers = getattr(self, side)
        if name not in readers:
            return None
        tensor = self._cache.pop((side, name), None)
        if tensor is None:
            tensor = readers[name]()
        self._cache[side, name] = tensor
        while len(self._cache) > 1 and sum(bits.patterns.nbytes for bits in self._cache.values()) > CACHE_BYTES:
            self._cache.popitem(last=False)
        return tensor

    def read_all(self, side: SourceName, names: tuple[str, ...]) -> list[TensorBits] | None:
        """Read several tensors; None if this side lacks one of them."""
        found = [tensor for name in names if (tensor := self.read(side, name)) is not None]
        return found if len(found) == len(names) else None

    @cached_property
    def layers_by_stem(self) -> dict[str, list[int]]:
        """Stem → the layers that have it."""
        layers_by_stem: dict[str, set[int]] = {}
        for name in self.expected:
            place = parse_tensor_name(name)
            if place.layer is not None:
                layers_by_stem.setdefault(place.stem, set()).add(place.layer)
        return {stem: sorted(layers) for stem, layers in layers_by_stem.items()}

    @cached_property
    def experts_by_stem(self) -> dict[tuple[str, int | None], list[int]]:
        """Stem and layer → the experts that have it."""
        experts_by_stem: dict[tuple[str, int | None], set[int]] = {}
        for name in self.expected:
            place = parse_tensor_name(name)
            if place.expert is not None:
                experts_by_stem.setdefault((place.stem, place.layer), set()).add(place.expert)
        return {key: sorted(experts) for key, experts in experts_by_stem.items()}

    @cached_property
    def label_counts(self) -> Counter[str]:
        """Label → number of tensors that have it."""
        return Counter(parse_tensor_name(name).label for name in self.expected)

    def group_into_keys(self, names: Iterable[str]) -> list[TensorKey]:
        """Group names into keys: q, k and v, or gate and up, where both sides have all of them; every other name by itself."""
        keys: dict[TensorKey, None] = {}
        for name in names:
            group = list_fused_members(name)
            if group and all(mate in self.expected and mate in self.actual for mate in group):
                keys[TensorKey(group, parse_tensor_name(group[0]), "qkv" if len(group) == 3 else "gate_up")] = None
            else:
                place = parse_tensor_name(name)
                keys[TensorKey((name,), place, place.part)] = None
        return list(keys)

    def is_interleaved(self, key: TensorKey) -> bool:
        """Whether it is one tensor that holds Q, K and V in Megatron's interleaved order."""
        return len(key.names) == 1 and bool(INTERLEAVED.search(key.names[0]))
