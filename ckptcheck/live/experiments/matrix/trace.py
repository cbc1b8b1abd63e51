"""The cells of a matrix, without those that cannot be measured, and the result: the evidence of its rules, and the table.

Its axes are those of NeMo-RL's guide for new models (docs/adding-new-models.md): lengths 100, 1,000 and 10,000, real and dummy
data, greedy and sampled, batches of 1, 8 and 32, parallel layouts, and ten runs of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import inf, isfinite
from statistics import fmean, pstdev
from typing import Literal, NamedTuple

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.rollouts.gap_summary import GapSummary
from ckptcheck.rollouts.prompts import Data
from ckptcheck.rollouts.thresholds import Thresholds

Decoding = Literal["greedy", "sampling"]
Direction = Literal["engine", "trainer"]
LENGTHS = (100, 1000, 10_000)
"""Lengths of the guide: the default, where the model has the room."""
SIZES = re.compile(r"(?:tp|pp|ep)[1-9][0-9]*")
TRAINERS, DATA, DECODING = ("transformers", "megatron"), ("real", "synthetic"), ("greedy", "sampling")


@dataclass(frozen=True)
class Plan:
    """The axes of a matrix, and how its cells are measured.

    temperature, top_p and top_k are those of sampling cells. Logprobs are always the model's own, so these only decide which
    tokens are compared.
    """

    lengths: tuple[int, ...] = LENGTHS
    """Tokens of prompt and response together."""
    data: tuple[Data, ...] = ("real", "synthetic")
    """Kinds of prompts: text, or random ids."""
    decoding: tuple[Decoding, ...] = ("greedy", "sampling")
    batches: tuple[int, ...] = (1, 8)
    """Numbers of sequences that the engine gets at once."""
    pairs: tuple[tuple[str, str], ...] = (("transformers", "vllm"),)
    """(trainer, engine) pairs that are compared."""
    directions: tuple[Direction, ...] = ("engine", "trainer")
    """Sides that draw the tokens."""
    repeats: int = 2
    """Runs of each cell."""
    response: int = 16
    """Tokens of each response."""
    sequences: int = 4
    """Fewest sequences that a cell compares; a larger batch size compares more."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    layouts: tuple[str, ...] = ()
    """Parallel layouts, such as ``tp2pp2``; (): the one that the sides are started with."""


class Row(NamedTuple):
    """A row of the table."""

    length: int
    data: str
    decoding: str
    batch: int
    layout: str = ""

    def __str__(self) -> str:
        layout = f", {self.layout}" if self.layout else ""
        return f"{self.length:,} tokens, {self.data} data, {self.decoding}, batch {self.batch}{layout}"


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement: one run of a cell of the table in one direction."""

    engine: str
    trainer: str
    length: int
    data: str
    decoding: str
    batch: int
    direction: str
    repeat: int
    layout: str = ""
    """The parallel layout, such as ``tp2pp2``; "" where the matrix has no such axis."""

    @property
    def row(self) -> Row:
        """The row of the table that it belongs to."""
        return Row(self.length, self.data, self.decoding, self.batch, self.layout)

    @property
    def pair(self) -> str:
        """The column of the table that it belongs to, such as ``transformers:vllm``."""
        return f"{self.trainer}:{self.engine}"


def list_cells(plan: Plan) -> Iterator[Cell]:
    """Yield every measurement; those that share a layout, an engine, prompts and responses follow each other."""
    engines = dict.fromkeys(engine for _, engine in plan.pairs)
    for layout, engine in product(plan.layouts or ("",), engines):
        trainers = [trainer for trainer, other in plan.pairs if other == engine]
        for length, data, decoding, batch, repeat, direction, trainer in product(
            plan.lengths, plan.data, plan.decoding, plan.batches, range(plan.repeats), plan.directions, trainers
        ):
            yield Cell(engine, trainer, length, data, decoding, batch, direction, repeat, layout)


def drop_unmeasurable_cells(
    plan: Plan, context: int | None, readable: str, *, default_lengths: bool = False
) -> tuple[Plan, dict[str, str]]:
    """Return the plan without lengths and data that cannot be measured, and a mapping from each of these to the reason.

    context: the model's context length in tokens; SGLang keeps two of them free (see PRB001). readable: why text cannot be
    tokenised, "" where it can. default_lengths: the user named no lengths; then only the first is measured where the context
    length is unknown. Raises CkptcheckError where nothing remains.
    """
    from dataclasses import replace

    reasons: dict[str, str] = {}
    free_tokens = 2 if any(engine == "sglang" for _, engine in plan.pairs) else 0
    for length in plan.lengths:
        if context is None and default_lengths and length > plan.lengths[0]:
            reasons[f"length {length:,}"] = "config.json does not say how many tokens the model takes: give --lengths"
        elif context is not None and length > context:
            reasons[f"length {length:,}"] = f"the model's context ends at {context:,} tokens (config.json)"
        elif context is not None and length > context - free_tokens:
            reasons[f"length {length:,}"] = (
                f"of the model's context of {context:,} tokens SGLang keeps {free_tokens} free"
            )
        elif length < plan.response + 2:
            reasons[f"length {length:,}"] = f"it leaves no room for a prompt beside {plan.response} tokens of response"
    lengths = tuple(length for length in plan.lengths if f"length {length:,}" not in reasons)
    if readable and "real" in plan.data:
        reasons["real data"] = readable
    data = tuple(kind for kind in plan.data if not (readable and kind == "real"))
    if not lengths or not data:
        # the reason of the axis on which nothing is left
        item = next(iter(reasons)) if not lengths else "real data"
        raise CkptcheckError(f"nothing of the matrix can be measured: {item}: {reasons[item]}")
    return replace(plan, lengths=lengths, data=data), reasons


def parse_pairs(texts: Sequence[str], engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``trainer:engine`` pairs; another trainer can stand in the place of the engine.

    Raises CkptcheckError for an unknown trainer or engine, and for a trainer beside itself.

    >>> parse_pairs(["transformers:vllm", "transformers:megatron"], ["vllm"])
    (('transformers', 'vllm'), ('transformers', 'megatron'))
    """
    pairs = []
    for text in texts:
        trainer, _, engine = text.partition(":")
        if trainer not in TRAINERS or engine not in (*engines, *TRAINERS) or trainer == engine:
            raise CkptcheckError(
                f"{text} is no pair of a trainer and an engine",
                hint=f"trainers are {', '.join(TRAINERS)}; engines are {', '.join(engines)}, or the other trainer:"
                " transformers:vllm, transformers:megatron",
            )
        pairs.append((trainer, engine))
    return tuple(dict.fromkeys(pairs))


def parse_layouts(texts: Sequence[str]) -> tuple[str, ...]:
    """Parse parallel layouts, and return them in one spelling. Raises CkptcheckError for any other text.

    >>> parse_layouts(["tp1", "PP2TP2", "tp2·pp2"])
    ('tp1', 'tp2pp2')
    """
    layouts = []
    for text in texts:
        sizes = SIZES.findall(text.lower())
        names = [size[:2] for size in sizes]
        if not sizes or "".join(sizes) != text.lower().replace("·", "") or len(set(names)) < len(names):
            raise CkptcheckError(f"{text} is no parallel layout", hint="write sizes: --layouts tp1,tp2,tp2pp2")
        order = sorted(sizes, key=lambda size: ("tp", "pp", "ep").index(size[:2]))
        layouts.append("".join(size for size in order if size[2:] != "1" or len(order) == 1))
    return tuple(dict.fromkeys(layout or "tp1" for layout in layouts))


def drop_unsplit_pairs(
    pairs: Sequence[tuple[str, str]], layouts: Sequence[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return for each layout the pairs that it makes a difference for.

    Megatron is split by all of a layout, an engine by its TP, transformers by nothing. So pairs without Megatron are measured
    once for each TP, and transformers beside transformers never.
    """
    measured: set[tuple[tuple[str, str], str]] = set()
    pairs_of: dict[str, tuple[tuple[str, str], ...]] = {}
    for layout in layouts:
        tp = next((size for size in SIZES.findall(layout) if size.startswith("tp")), "tp1")
        keys = {pair: (pair, layout if "megatron" in pair else tp) for pair in pairs}
        pairs_of[layout] = tuple(pair for pair, key in keys.items() if key not in measured)
        measured |= set(keys.values())
    return pairs_of


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
