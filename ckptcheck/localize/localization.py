"""What was seen of one prompt on two sides: the evidence of the rules that say where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.engines.activations import Activations
from ckptcheck.localize.points import Point, by_layer, first_diverging, least, order, points
from ckptcheck.localize.relation import relation
from ckptcheck.localize.routing import Rerouted, rerouted
from ckptcheck.report import Section

AROUND = 4
"""Points before and after the first that diverges that a report shows."""


@dataclass(frozen=True)
class Localization:
    """sides: what each is called; the first is the reference. chosen: experts of a token, 0 in a dense model.

    limit: the user's own, None for that of the dtype. unread: what could not be read, as other evidence has it.
    """

    target: str
    sides: tuple[str, str]
    reference: Activations = field(repr=False)
    other: Activations = field(repr=False)
    dtype: str = "float32"
    chosen: int = 0
    own_limit: float | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    kind: str = "localization"

    @property
    def limit(self) -> float:
        """The relative difference over which a point is not equal."""
        return least(self.dtype) if self.own_limit is None else self.own_limit

    @property
    def subject(self) -> str:
        """One line: who met whom, over how many points."""
        return f"{self.sides[0]} ↔ {self.sides[1]} · {len(self.points)} points · limit {self.limit:.2g}"

    @property
    def counts(self) -> Mapping[str, int]:
        """Matrices compared and their bytes."""
        size = sum(self.reference[point.name].nbytes for point in self.points)
        return {"files": 2, "tensors": len(self.points), "bytes": size}

    @cached_property
    def points(self) -> list[Point]:
        """Every point that both sides have, in the order of execution."""
        return points(self.reference, self.other, self.sides, self.limit)

    @cached_property
    def diverging(self) -> Point | None:
        """The first point that is further apart than rounding brings it."""
        return first_diverging(self.points, self.limit)

    @cached_property
    def relation(self) -> str | None:
        """How the sides are related at that point."""
        return relation(self.diverging.name, self.reference, self.other) if self.diverging else None

    @cached_property
    def rerouted(self) -> list[Rerouted]:
        """Layers whose routers choose other experts."""
        return rerouted(self.reference, self.other, self.chosen)

    @property
    def unmatched(self) -> dict[str, list[str]]:
        """Side → points that the other has not, or has with another shape."""
        matched = {point.name for point in self.points}
        return {
            side: sorted((name for name in held if name not in matched), key=order)
            for side, held in zip(self.sides, (self.reference, self.other), strict=True)
        }

    @property
    def sections(self) -> tuple[Section, ...]:
        """The worst point of each layer, and what lies around the first that diverges."""
        columns = ("point", "relative", "largest", "cosine", "first token")

        def row(point: Point) -> tuple[str | int | float | None, ...]:
            return (
                point.name,
                point.relative,
                point.largest,
                round(point.cosine, 7),
                point.first if point.tokens > 1 else None,
            )

        found = [Section("The worst of each layer", columns, tuple(row(p) for p in by_layer(self.points).values()))]
        if self.diverging is not None:
            at = self.points.index(self.diverging)
            near = self.points[max(0, at - AROUND) : at + AROUND + 1]
            found.append(Section("Where they part", columns, tuple(row(point) for point in near)))
        return tuple(found) if self.points else ()
