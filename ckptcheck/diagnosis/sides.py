"""What was expected and what was found, tensor by tensor, each read when it is asked for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.geometry import Geometry
from ckptcheck.diagnosis.place import INTERLEAVED, Place, leader_of, mates_of, place_of

Side = Literal["expected", "actual", "previous"]
Readers = Mapping[str, Callable[[], Bits]]
KEPT = 1 << 27
"""Bytes of tensors that are kept for the next question."""


@dataclass(frozen=True)
class Key:
    """One thing to explain: tensors that belong together, or one expert of a stacked tensor.

    names: in the order of the fused tensor. part: q, k and v are ``qkv``, gate and up ``gate_up``. expert: the slice of
    a stacked tensor, else None.
    """

    names: tuple[str, ...]
    place: Place
    part: str
    expert: int | None = None

    @property
    def label(self) -> str:
        """What all layers have: ``self_attn.q_proj.weight``; fused ones are joined: ``mlp.gate_proj+up_proj.weight``."""
        labels = [place_of(name).label for name in self.names]
        if len(labels) == 1:
            return labels[0]
        words = [label.split(".") for label in labels]
        return ".".join("+".join(dict.fromkeys(parts)) for parts in zip(*words, strict=True))

    def elsewhere(self, layer: int | None, expert: int | None) -> Key:
        """The same thing in another layer and expert."""
        stacked = self.expert is not None
        places = [place_of(name) for name in self.names]
        names = tuple(place.elsewhere(layer, None if stacked else expert) for place in places)
        return Key(names, place_of(names[0]), self.part, expert if stacked else None)

    def single(self, name: str) -> Key:
        """One of the tensors by itself."""
        place = place_of(name)
        return Key((name,), place, place.part, self.expert)

    @property
    def number(self) -> int | None:
        """Which expert it is."""
        return self.expert if self.expert is not None else self.place.expert


@dataclass(frozen=True)
class Sides:
    """expected, actual, previous: name → reader. A name that is only expected is missing.

    previous: the version before, where there is one and it is known. called: name → what the other side calls it.
    Readers may raise OSError or a CkptcheckError; both are passed on.
    """

    expected: Readers
    actual: Readers
    previous: Readers = field(default_factory=dict)
    geometry: Geometry = field(default_factory=Geometry)
    called: Mapping[str, str] = field(default_factory=dict)
    _kept: OrderedDict[tuple[Side, str], Bits] = field(default_factory=OrderedDict, repr=False, compare=False)

    def read(self, side: Side, name: str) -> Bits | None:
        """Read a tensor, None where this side has none of that name. The last few are kept."""
        readers: Readers = getattr(self, side)
        if name not in readers:
            return None
        found = self._kept.pop((side, name), None)
        if found is None:
            found = readers[name]()
        self._kept[side, name] = found
        while len(self._kept) > 1 and sum(bits.patterns.nbytes for bits in self._kept.values()) > KEPT:
            self._kept.popitem(last=False)
        return found

    @cached_property
    def layers(self) -> dict[str, list[int]]:
        """Stem → the layers that have it."""
        found: dict[str, set[int]] = {}
        for name in self.expected:
            place = place_of(name)
            if place.layer is not None:
                found.setdefault(place.stem, set()).add(place.layer)
        return {stem: sorted(layers) for stem, layers in found.items()}

    @cached_property
    def experts(self) -> dict[tuple[str, int | None], list[int]]:
        """Stem and layer → the experts that have it."""
        found: dict[tuple[str, int | None], set[int]] = {}
        for name in self.expected:
            place = place_of(name)
            if place.expert is not None:
                found.setdefault((place.stem, place.layer), set()).add(place.expert)
        return {key: sorted(experts) for key, experts in found.items()}

    @cached_property
    def totals(self) -> Counter[str]:
        """Label → how many tensors are called so."""
        return Counter(place_of(name).label for name in self.expected)

    def keys(self, names: Iterable[str]) -> list[Key]:
        """Group names into things to explain: q, k and v where both sides have all three, gate and up, else one by one."""
        found: dict[Key, None] = {}
        for name in names:
            place = place_of(name)
            first = place_of(leader_of(place) or name)
            group = (first.name, *mates_of(first))
            whole = len(group) > 1 and all(mate in self.expected and mate in self.actual for mate in group)
            if whole and name in group:
                found[Key(group, first, "qkv" if first.part == "q" else "gate_up")] = None
            else:
                found[Key((name,), place, place.part)] = None
        return list(found)

    def is_interleaved(self, key: Key) -> bool:
        """Whether it is one tensor that holds Q, K and V in Megatron's order."""
        return len(key.names) == 1 and bool(INTERLEAVED.search(key.names[0]))
