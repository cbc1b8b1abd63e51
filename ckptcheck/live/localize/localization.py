"""The activations of one prompt on two sides: evidence for the rules that name the first module that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import structs

from ckptcheck.compare.activations.points import (
    Point,
    compare_points,
    execution_order,
    find_first_diverging,
    rounding_limit,
    worst_by_layer,
)
from ckptcheck.compare.activations.relation import describe_relation
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.text.formatting import count, join_truncated

AROUND = 4
"""How many points before and after the first diverging one a report shows."""


@dataclass(frozen=True)
class UnequalCopy:
    """An output that all ranks of a tensor-parallel group hold, but that differs between them."""

    side: str
    point: str
    rank: str
    """The rank that is farther from the other side."""
    peer: str
    """The rank that is closer to it."""
    relative: float
    """Norm of the difference between the two ranks, divided by the norm of the peer's output."""
    relation: str | None
    """How the rank's output is related to the peer's; None without a simple relation."""


@dataclass(frozen=True)
class RankLayout:
    """How ckptcheck matched the ranks and tokens of two dumps."""

    unequal_copies: tuple[UnequalCopy, ...] = ()
    """The first of each tensor-parallel group."""
    not_compared: tuple[str, ...] = ()
    """Ranks and calls of modules that are not compared, and why: clauses for a reader."""
    is_fused: bool = False
    """Whether q, k and v are one projection on both sides, and no config says how to split it."""
    moves: tuple[str, ...] = ()
    """Tokens that stand elsewhere on the other side, or are padding: clauses for a reader."""
    different: str | None = None
    """How the tokens of the two sides differ; None if they are the same."""
    positions: str | None = None
    """How the position ids of the same tokens differ; None if they are the same, or if a dump has none."""


@dataclass(frozen=True)
class ReroutedLayer:
    """A layer in which tokens go to different experts."""

    layer: int
    """Index of the decoder layer."""
    tokens: tuple[int, ...]
    """Positions of the tokens whose sets of experts differ."""
    total: int
    """How many tokens the prompt has."""
    margin: float
    """The largest distance, in the reference's logits, between an expert of the reference and the one that replaces it on the other
    side; near 0, rounding decides."""


def find_rerouted_tokens(reference: Activations, other: Activations, experts_per_token: int) -> list[ReroutedLayer]:
    """Return the layers in which tokens go to different experts. Empty for a dense model (experts_per_token 0)."""
    import numpy as np

    layers = []
    for name, a in reference.items():
        if not name.endswith(".mlp.gate") or name not in other or other[name].shape != a.shape:
            continue
        b = other[name]
        if not 0 < experts_per_token < a.shape[1] or not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        reference_experts, other_experts = (
            np.argsort(-logits, axis=1, kind="stable")[:, :experts_per_token] for logits in (a, b)
        )
        rerouted, margin = [], 0.0
        for token in range(len(a)):
            lost_experts, gained_experts = (
                set(reference_experts[token]) - set(other_experts[token]),
                set(other_experts[token]) - set(reference_experts[token]),
            )
            if lost_experts:
                rerouted.append(token)
                margin = max(margin, float(min(a[token][list(lost_experts)]) - max(a[token][list(gained_experts)])))
        if rerouted:
            layers.append(ReroutedLayer(int(name.split(".")[2]), tuple(rerouted), len(a), margin))
    return layers


@dataclass(frozen=True)
class Localization(EvidenceDefaults):
    """The evidence of one comparison of activations."""

    target: str
    """The checkpoint or the dumps, as the user named them."""
    sides: tuple[str, str]
    """The names of the two sides in the report; the first is the reference."""
    reference: Activations = field(repr=False)
    """Point → its output on the reference side, [tokens, width]."""
    other: Activations = field(repr=False)
    """The same on the other side."""
    dtype: str = "float32"
    """Compute dtype, which sets the default limit."""
    experts_per_token: int = 0
    """0 for a dense model."""
    own_limit: float | None = None
    """The limit that the user set; None: that of the dtype."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read → why."""
    ranks: str = ""
    """The ranks of both sides that are compared, of a dump with several replicas: ``rank 1 ↔ ranks 2, 3``."""
    further: tuple[Localization, ...] = ()
    """The same comparison of the other data- and context-parallel ranks."""
    layout: RankLayout | None = None
    """How ckptcheck matched ranks and tokens; None for sides that are no dumps and need no matching."""
    kind: str = "localization"

    @property
    def limit(self) -> float:
        """The largest relative difference that still counts as equal."""
        return rounding_limit(self.dtype) if self.own_limit is None else self.own_limit

    @property
    def subject(self) -> str:
        """One line with the two sides, the number of points, and the limit."""
        where = f" on {len(self.replicas)} pairs of ranks" if self.further else ""
        return f"{self.sides[0]} ↔ {self.sides[1]} · {len(self.points)} points{where} · limit {self.limit:.2g}"

    @property
    def replicas(self) -> tuple[Localization, ...]:
        """The comparisons of all ranks, this one first."""
        return self, *self.further

    @property
    def counts(self) -> Mapping[str, int]:
        """The numbers of files, of matrices compared (as tensors), and of their bytes."""
        sizes = [part.reference[point.name].nbytes for part in self.replicas for point in part.points]
        return {"files": 2, "tensors": len(sizes), "bytes": sum(sizes)}

    @cached_property
    def points(self) -> list[Point]:
        """Every point that both sides have, in the order of execution."""
        return compare_points(self.reference, self.other, self.sides, self.limit)

    @cached_property
    def first_diverging(self) -> Point | None:
        """The first point that differs by more than rounding."""
        return find_first_diverging(self.points, self.limit)

    @cached_property
    def relation(self) -> str | None:
        """How the two outputs are related at the first diverging point; None without a simple relation."""
        return (
            describe_relation(self.first_diverging.name, self.reference, self.other) if self.first_diverging else None
        )

    @cached_property
    def rerouted_layers(self) -> list[ReroutedLayer]:
        """Layers whose routers choose different experts on the two sides."""
        return find_rerouted_tokens(self.reference, self.other, self.experts_per_token)

    @property
    def unmatched(self) -> dict[str, list[str]]:
        """Side → its points that the other side lacks, or has with another shape."""
        matched = {point.name for point in self.points}
        return {
            side: sorted((name for name in activations if name not in matched), key=execution_order)
            for side, activations in zip(self.sides, (self.reference, self.other), strict=True)
        }

    @property
    def not_compared(self) -> list[str]:
        """Everything that is not compared, over all ranks: ranks, calls of modules, and points that one side lacks."""
        clauses = list(self.layout.not_compared) if self.layout else []
        for side in self.sides:
            if names := sorted({name for part in self.replicas for name in part.unmatched[side]}, key=execution_order):
                clauses.append(f"{count(len(names), 'module output')} of {side} ({join_truncated(names, 3)})")
        return clauses

    @property
    def sections(self) -> tuple[Section, ...]:
        """The pairs of ranks, if several, and tables of the points of the first pair that differs, else of the first."""
        if not self.further:
            return self._point_tables
        part = next((part for part in self.replicas if part.first_diverging is not None), self)
        rows = tuple(
            (
                replica.ranks,
                len(replica.points),
                max((point.relative for point in replica.points), default=None),
                replica.first_diverging.name if replica.first_diverging else None,
            )
            for replica in self.replicas
        )
        table = Section("Ranks", ("ranks", "points", "largest relative", "first that differs"), rows)
        return table, *(
            structs.replace(section, title=f"{section.title}, {part.ranks}") for section in part._point_tables
        )

    @property
    def _point_tables(self) -> tuple[Section, ...]:
        """The worst point of each layer, and the points around the first diverging one."""
        columns = ("point", "relative", "largest", "cosine", "first token")

        def row(point: Point) -> tuple[str | int | float | None, ...]:
            return (
                point.name,
                point.relative,
                point.largest,
                round(point.cosine, 7),
                point.first_token if point.tokens > 1 else None,
            )

        tables = [
            Section(
                "The worst of each layer", columns, tuple(row(point) for point in worst_by_layer(self.points).values())
            )
        ]
        if self.first_diverging is not None:
            index = self.points.index(self.first_diverging)
            nearby_points = self.points[max(0, index - AROUND) : index + AROUND + 1]
            tables.append(Section("Where they diverge", columns, tuple(row(point) for point in nearby_points)))
        return tuple(tables) if self.points else ()
