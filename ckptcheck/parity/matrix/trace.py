"""What a matrix came to: the evidence of its rules, and the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from statistics import fmean, pstdev

from ckptcheck.parity.gap import Gap
from ckptcheck.parity.gates import Gates
from ckptcheck.parity.matrix.cells import Cell
from ckptcheck.report import Section

Row = tuple[int, str, str, int]


@dataclass(frozen=True)
class Value:
    """A cell of the table: mult_prob_error by direction, its mean, and how much the runs differ (standard deviation).

    tokens: compared, in all runs. mean, worst: |Δ| in nats, the mean and the largest of one run's means.
    """

    directions: Mapping[str, float]
    error: float
    spread: float
    tokens: int
    mean: float
    worst: float


@dataclass(frozen=True)
class MatrixTrace:
    """done: every measurement. left: what was not measured → why. precisions: trainer:engine → the dtypes of both.

    floor: mult_prob_error of the same weights on the same pair, where it was calibrated; pair → value. broken: as everywhere.
    gates: of mult_prob_error, and of multiples of the floor.
    """

    target: str
    done: Mapping[Cell, Gap] = field(default_factory=dict, repr=False)
    left: Mapping[str, str] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    precision: str = "float32"
    floor: Mapping[str, float] = field(default_factory=dict)
    more: tuple[Section, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    gates: Gates = field(default_factory=Gates)
    kind: str = "matrix"

    @property
    def subject(self) -> str:
        """Who met whom."""
        return f"{' · '.join(self.versions)} · {self.precision}"

    @property
    def unread(self) -> Mapping[str, str]:
        """What was not finished."""
        return self.broken

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells as files, compared tokens as tensors: a report's words for what was looked at."""
        return {"files": len(self.values), "tensors": sum(each.tokens for each in self.values.values()), "bytes": 0}

    @cached_property
    def values(self) -> dict[tuple[Row, str], Value]:
        """(row, pair) → value."""
        grouped: dict[tuple[Row, str], dict[Cell, Gap]] = {}
        for cell, gap in self.done.items():
            grouped.setdefault((cell.row, cell.pair), {})[cell] = gap
        return {key: _value(found) for key, found in sorted(grouped.items())}

    @cached_property
    def pairs(self) -> list[str]:
        """The pairs, in the order in which they were measured."""
        return list(dict.fromkeys(cell.pair for cell in self.done))

    @property
    def _directions(self) -> list[str]:
        """Who drew the tokens, where there were both; else it is no column."""
        found = {cell.direction for cell in self.done}
        return ["engine", "trainer"] if len(found) > 1 else []

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table, and what is not in it."""
        columns = ["length", "data", "decoding", "batch"]
        for pair in self.pairs:
            columns += [pair, "±", *(f"x ~ {who}" for who in self._directions), "mean |Δ|"]
            columns += ["× floor"] if pair in self.floor else []
        table = Section("mult_prob_error, 1 is perfect (mean exp|Δ| over tokens)", tuple(columns), tuple(self._rows()))
        left = tuple(f"not measured: {what}: {why}" for what, why in self.left.items())
        return (table, *self.more, *((Section("Left out", lines=left),) if left else ()))

    def _rows(self) -> Iterator[tuple[str | int | float | None, ...]]:
        for row in sorted({row for row, _ in self.values}):
            cells: list[str | int | float | None] = [*row]
            for pair in self.pairs:
                value = self.values.get((row, pair))
                if value is None:
                    cells += [None] * (3 + len(self._directions) + (pair in self.floor))
                    continue
                cells += [value.error, value.spread, *map(value.directions.get, self._directions), value.mean]
                if pair in self.floor:
                    least = self.floor[pair] - 1
                    cells.append((value.error - 1) / least if least > 0 else None)
            yield tuple(cells)

    def markdown(self) -> str:
        """Return the table as NeMo-RL's guide prints it."""
        heads = ["Sequence Length", "Data Type", "Generation Method", "Batch Size", *self.pairs]
        lines = [heads, ["---"] * len(heads)]
        for row in sorted({row for row, _ in self.values}):
            length, data, decoding, batch = row
            cells = [f"{length:,}", data.capitalize(), decoding.capitalize(), str(batch)]
            for pair in self.pairs:
                value = self.values.get((row, pair))
                cells.append("" if value is None else f"{value.error:.6f} ± {value.spread:.1g}")
            lines.append(cells)
        notes = [f"\nNot measured: {what}: {why}." for what, why in self.left.items()]
        return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), *notes]) + "\n"


def _value(found: Mapping[Cell, Gap]) -> Value:
    directions = {
        name: fmean(gap.mult_prob_error for cell, gap in found.items() if cell.direction == name)
        for name in dict.fromkeys(cell.direction for cell in found)
    }
    runs = [
        fmean(gap.mult_prob_error for cell, gap in found.items() if cell.repeat == repeat)
        for repeat in sorted({cell.repeat for cell in found})
    ]
    return Value(
        directions,
        fmean(directions.values()),
        pstdev(runs) if all(map(isfinite, runs)) else inf,
        round(sum(gap.tokens for gap in found.values())),
        fmean(gap.mean for gap in found.values()),
        max(gap.mean for gap in found.values()),
    )
