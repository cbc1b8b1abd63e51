"""Rollouts as the rules about them see them, and what was measured of them, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.metrics.distribution import Exact, Temperature, exact_of, temperature_of
from ckptcheck.metrics.floor import Floor
from ckptcheck.metrics.gap import Gap, gap
from ckptcheck.metrics.routing import disagreement
from ckptcheck.metrics.shift import shifts
from ckptcheck.parity.gates import Gates
from ckptcheck.parity.sections import sections
from ckptcheck.phrase import count
from ckptcheck.report import Section
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.rule import Skip

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Judged:
    """One file of rollouts. decode: token id → text, where a tokenizer was given."""

    target: str
    rollouts: Rollouts
    gates: Gates = field(default_factory=Gates)
    floor: Floor | None = None
    decode: Callable[[int], str] | None = None
    kind: str = "rollouts"

    @property
    def sound(self) -> bool:
        """Whether the columns are what they have to be, so that they can be looked at."""
        return not self.rollouts.defects

    @property
    def scored(self) -> bool:
        """Whether both sides have logprobs."""
        return self.sound and {"engine_logprobs", "trainer_logprobs"} <= self.rollouts.columns.keys()

    @cached_property
    def measured(self) -> Gap | None:
        """The gap; None where nothing can be compared (PAR006 says so)."""
        return gap(self.rollouts) if self.scored else None

    @property
    def gap(self) -> Gap:
        """The gap. Raises Skip where nothing can be compared."""
        if self.measured is None:
            raise Skip("no token could be compared")
        return self.measured

    @cached_property
    def shifts(self) -> dict[int, tuple[int, float]]:
        """The gap with one side moved by -1, 0 and 1 token."""
        return shifts(self.rollouts)

    @cached_property
    def exact(self) -> Exact | None:
        """The exact KL, where full-vocabulary logprobs are recorded."""
        return exact_of(self.rollouts) if self.sound else None

    @cached_property
    def temperature(self) -> Temperature | None:
        """The temperature between the two sides, where distributions are recorded."""
        return temperature_of(self.rollouts) if self.sound else None

    @cached_property
    def routing(self) -> tuple[NDArray[np.float64], int] | None:
        """The share of tokens that are routed differently, per layer, and the number of tokens."""
        return disagreement(self.rollouts) if self.sound else None

    def times_floor(self, name: str, value: float) -> str:
        """Say how many times the floor a value is; "" where that is not known."""
        times = self.floor.multiple(name, value) if self.floor is not None else None
        return "" if times is None else f", {times:.3g} times the floor"

    @property
    def subject(self) -> str:
        """Who is held against whom, over how much, and the gap in three numbers."""
        about = self.rollouts.metadata
        sides = [f"{side.name} {side.version}".strip() for side in (about.engine, about.trainer) if side is not None]
        parts = [" ↔ ".join(filter(None, sides)), about.model, f"step {about.step}" if about.step is not None else ""]
        if self.sound:
            parts.append(count(self.rollouts.number, "sequence"))
        if (found := self.measured) is not None:
            parts += [
                f"{count(found.tokens, 'token')} compared",
                f"mult_prob_error {found.mult_prob_error:.5g}",
                f"k3 {found.k3:.3g}",
                f"|Δ| mean {found.abs_mean:.3g}, max {found.abs_max:.3g}",
            ]
        return " · ".join(part for part in parts if part)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The gap in tables; () where there is none."""
        found = self.measured
        if found is None:
            return ()
        return tuple(sections(found, self.gates, self.floor, self.decode, self.exact, self.temperature))

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing is left unread: what cannot be read is a finding."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """One file; its columns; their bytes."""
        columns = self.rollouts.columns.values()
        return {"files": 1, "tensors": len(columns), "bytes": sum(column.nbytes for column in columns)}
