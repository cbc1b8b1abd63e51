"""The result of a matrix: the evidence of its rules, and the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from statistics import fmean, pstdev

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.matrix.cells import Cell, Row
from ckptcheck.rollouts.gap_summary import GapSummary
from ckptcheck.rollouts.thresholds import Thresholds


@dataclass(frozen=True)
class CellValue:
    """A cell of the table, over all its runs."""

    directions: Mapping[str, float]
    """Direction → mean mult_prob_error of its runs."""
    error: float
    """Mean of `directions`."""
    spread: float
    """Standard deviation of mult_prob_error between the runs."""
    tokens: int
    """Number of compared tokens in all runs."""
    mean: float
    """Mean |Δ| in nats."""
    worst: float
    """Largest mean |Δ| of a single measurement, in nats."""


@dataclass(frozen=True)
class MatrixTrace(EvidenceDefaults):
    """The measurements of a matrix as evidence."""

    target: str
    measurements: Mapping[Cell, GapSummary] = field(default_factory=dict, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What was not measured → the reason."""
    versions: tuple[str, ...] = ()
    """Names and versions of the trainers and engines."""
    precision: str = "float32"
    """The dtype that both sides compute in."""
    floor: Mapping[str, float] = field(default_factory=dict)
    """Pair, or pair and layout as in ``megatron:vllm tp2`` → mult_prob_error with equal weights on both sides, where it was
    calibrated."""
    extra_sections: tuple[Section, ...] = ()
    """Tables of the calibration, which follow the matrix."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """What failed before it was finished → the error."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Limits of mult_prob_error and of multiples of the floor."""
    kind: str = "matrix"

    @property
    def subject(self) -> str:
        """The versions of trainers and engines, and the precision."""
        return " · ".join(filter(None, (*self.versions, self.precision)))

    @property
    def failed_to(self) -> str:
        """The verb for what is `unread`."""
        return "finish"

    @property
    def unread(self) -> Mapping[str, str]:
        """What failed before it was finished → the error."""
        return self.broken

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts of the report: `files` are the cells of the table, `tensors` the compared tokens."""
        return {"files": len(self.values), "tensors": sum(value.tokens for value in self.values.values()), "bytes": 0}

    @cached_property
    def values(self) -> dict[tuple[Row, str], CellValue]:
        """(row, pair) → the cell of the table."""
        grouped: dict[tuple[Row, str], dict[Cell, GapSummary]] = {}
        for cell, gap in self.measurements.items():
            grouped.setdefault((cell.row, cell.pair), {})[cell] = gap
        return {key: _summarize_cell(gaps) for key, gaps in sorted(grouped.items())}

    @cached_property
    def pairs(self) -> list[str]:
        """The pairs, in the order of their measurements."""
        return list(dict.fromkeys(cell.pair for cell in self.measurements))

    @property
    def table_rows(self) -> list[Row]:
        """The rows of the table; layouts are in the order of their measurements."""
        layouts = list(dict.fromkeys(cell.layout for cell in self.measurements))
        return sorted({row for row, _ in self.values}, key=lambda row: (row[:4], layouts.index(row.layout)))

    @property
    def _directions(self) -> list[str]:
        """The sides that drew tokens, where both did; else [], and the table has no columns for them."""
        directions = {cell.direction for cell in self.measurements}
        return ["engine", "trainer"] if len(directions) > 1 else []

    def floor_of(self, row: Row, pair: str) -> float | None:
        """Return the floor of a pair in the layout of a row, None where it was not measured."""
        return self.floor.get(f"{pair} {row.layout}", self.floor.get(pair))

    @property
    def _has_layouts(self) -> bool:
        return any(row.layout for row, _ in self.values)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table, the sections of the calibration, and what was not measured."""
        columns = ["length", "data", "decoding", "batch", *(["layout"] if self._has_layouts else [])]
        for pair in self.pairs:
            columns += [pair, "±", *(f"x ~ {direction}" for direction in self._directions), "mean |Δ|"]
            columns += ["× floor"] if self._has_floor(pair) else []
        table = Section("mult_prob_error, 1 is perfect (mean exp|Δ| over tokens)", tuple(columns), tuple(self._rows()))
        left_out_lines = tuple(f"not measured: {item}: {reason}" for item, reason in self.left_out.items())
        return (table, *self.extra_sections, *((Section("Left out", lines=left_out_lines),) if left_out_lines else ()))

    def _has_floor(self, pair: str) -> bool:
        return any(name.partition(" ")[0] == pair for name in self.floor)

    def _rows(self) -> Iterator[tuple[str | int | float | None, ...]]:
        for row in self.table_rows:
            cells: list[str | int | float | None] = [*row] if self._has_layouts else [*row[:4]]
            for pair in self.pairs:
                value, has_floor = self.values.get((row, pair)), self._has_floor(pair)
                if value is None:
                    cells += [None] * (3 + len(self._directions) + has_floor)
                    continue
                cells += [value.error, value.spread, *map(value.directions.get, self._directions), value.mean]
                if has_floor:
                    least = (self.floor_of(row, pair) or 1) - 1
                    cells.append((value.error - 1) / least if least > 0 else None)
            yield tuple(cells)

    def markdown(self) -> str:
        """Return the table as NeMo-RL's guide prints it."""
        layout_column = ["Layout"] if self._has_layouts else []
        header = ["Sequence Length", "Data Type", "Generation Method", "Batch Size", *layout_column, *self.pairs]
        lines = [header, ["---"] * len(header)]
        for row in self.table_rows:
            cells = [f"{row.length:,}", row.data.capitalize(), row.decoding.capitalize(), str(row.batch)]
            cells += [row.layout] if layout_column else []
            for pair in self.pairs:
                value = self.values.get((row, pair))
                cells.append("" if value is None else f"{value.error:.6f} ± {value.spread:.1g}")
            lines.append(cells)
        notes = [f"\nNot measured: {item}: {reason}." for item, reason in self.left_out.items()]
        notes += [f"\n{item.capitalize()} did not finish: {reason}." for item, reason in self.broken.items()]
        return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), *notes]) + "\n"


def _summarize_cell(gaps: Mapping[Cell, GapSummary]) -> CellValue:
    directions = {
        name: fmean(gap.mult_prob_error for cell, gap in gaps.items() if cell.direction == name)
        for name in dict.fromkeys(cell.direction for cell in gaps)
    }
    runs = [
        fmean(gap.mult_prob_error for cell, gap in gaps.items() if cell.repeat == repeat)
        for repeat in sorted({cell.repeat for cell in gaps})
    ]
    return CellValue(
        directions,
        fmean(directions.values()),
        pstdev(runs) if all(map(isfinite, runs)) else inf,
        round(sum(gap.tokens for gap in gaps.values())),
        fmean(gap.mean for gap in gaps.values()),
        max(gap.mean for gap in gaps.values()),
    )
