"""Measures a record of expert routing by itself: missing rows, impossible ones, and rows that repeat those of other tokens.

A router replay feeds these rows to the trainer, which cannot check them. Row t holds the experts of token t, one set for each
layer. A sequence's last token has no row, because the engine computes nothing from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Block, Rollouts

CHANCE = 1e-6
"""Largest probability at which equal rows in a run still count as chance."""
SHORTEST, SHORTEST_COPY = 3, 8
"""Fewest equal rows in a row, and fewest rows of a copied stretch, to report: shorter ones occur by chance."""


@dataclass(frozen=True)
class RowMatches:
    """The rows that match a test, and the first of them."""

    number: int
    """Number of matching rows."""
    sequences: int
    """Number of sequences with one."""
    sequence: int
    """Sequence of the first one."""
    position: int
    """Its token in this sequence, from 0."""
    layer: int
    """Its first matching layer, counted in the column."""
    ids: tuple[int, ...]
    """The experts of this row in this layer."""

    @property
    def place(self) -> str:
        """Sequence, token and layer of the first match, as a text."""
        return f"sequence {self.sequence}, token {self.position}, layer {self.layer}"


@dataclass(frozen=True)
class RepeatedRows:
    """A stretch of rows that repeats earlier ones although its tokens are others."""

    sequence: int
    first: int
    last: int
    """The tokens of the stretch, both included."""
    distance: int
    """How many tokens earlier in the file the same rows are."""
    source_sequence: int
    source: int
    """Sequence and token of the row that the stretch begins to repeat."""


@dataclass(frozen=True)
class RoutingRecord:
    """One side's column of routing."""

    rollouts: Rollouts
    column: str
    """``engine_routing`` or ``trainer_routing``."""
    experts: int | None = None
    """Number of experts of a layer; None: unknown."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers, and of experts that a token goes to."""
        _, layers, choices = self.rollouts.columns[self.column].shape
        return layers, choices

    @cached_property
    def due_rows(self) -> int:
        """Number of rows that a replay needs: one for every token but the last of each sequence."""
        return sum(int(is_due(block).sum()) for block in self.rollouts.blocks())

    @cached_property
    def captured_layers(self) -> NDArray[np.bool_]:
        """Bool [layers]: whether any row names an expert other than 0. A layer without experts holds zeros or -1."""
        import numpy as np

        captured = np.zeros(self.shape[0], bool)
        for block in self.rollouts.blocks():
            if not captured.all():
                captured |= (np.asarray(block.column(self.column))[is_due(block)] > 0).any((0, 2))
        return captured

    @cached_property
    def is_all_missing(self) -> bool:
        """Whether every due row is -1."""
        import numpy as np

        return all(
            bool((np.asarray(block.column(self.column))[is_due(block)] == -1).all()) for block in self.rollouts.blocks()
        )

    def _iter_rows(self) -> Iterator[tuple[Block, NDArray[Any], NDArray[np.bool_]]]:
        """Yield each block, its rows in the captured layers, and which of its rows are due."""
        import numpy as np

        layers = np.flatnonzero(self.captured_layers)
        for block in self.rollouts.blocks():
            rows = np.asarray(block.column(self.column))
            yield block, rows if len(layers) == rows.shape[1] else rows[:, layers], is_due(block)

    @cached_property
    def missing(self) -> RowMatches | None:
        """The rows in which a layer has no experts at all (-1 for each)."""
        return self._find(lambda rows: (rows == -1).all(2))

    @cached_property
    def impossible(self) -> RowMatches | None:
        """The rows with an id that is no expert: below -1, beyond the last one, or -1 beside experts."""
        import numpy as np

        experts = self.experts

        def test(rows: NDArray[Any]) -> NDArray[Any]:
            negative = rows < 0
            found = np.asarray(negative.any(2) & ~(rows == -1).all(2))
            return found if experts is None else found | (rows >= experts).any(2)

        return self._find(test)

    @cached_property
    def zeros(self) -> RowMatches | None:
        """The rows that name expert 0 for every choice in every layer, with more than one choice: nothing was written there."""
        if self.shape[1] < 2:
            return None
        return self._find(lambda rows: (rows == 0).all((1, 2))[:, None])

    @cached_property
    def duplicates(self) -> RowMatches | None:
        """The rows that name an expert twice in one layer and are not all zeros."""
        import numpy as np

        if self.shape[1] < 2:
            return None

        def test(rows: NDArray[Any]) -> NDArray[Any]:
            ordered = np.sort(rows, 2)
            double = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(2)
            return np.asarray(double & ~(rows == 0).all((1, 2))[:, None])

        return self._find(test)

    def _find(self, test: Any) -> RowMatches | None:
        """Return the due rows that match a test. test: rows [tokens, layers, k] → bool [tokens, layers]."""
        import numpy as np

        layers = np.flatnonzero(self.captured_layers)
        if not len(layers):
            return None
        number = sequences = 0
        first: tuple[int, int, int, tuple[int, ...]] | None = None
        for block, rows, due in self._iter_rows():
            cells = test(rows) & due[:, None]
            matching = cells.any(1)
            places = np.flatnonzero(matching)
            if not len(places):
                continue
            number += len(places)
            sequences += len(np.unique(block.owners[places]))
            if first is None:
                place, layer = int(places[0]), int(cells[places[0]].argmax())
                first = (
                    int(block.owners[place]), int(block.positions[place]), int(layers[layer]),
                    tuple(rows[place, layer].tolist()),
                )  # fmt: skip
        return None if first is None else RowMatches(number, sequences, *first)

    @cached_property
    def repeated(self) -> tuple[RepeatedRows, ...]:
        """The stretches of rows that repeat earlier ones for other tokens, where chance cannot explain it, longest first.

        The rate of equal rows by chance depends on the model, so the file itself gives it: a stretch counts if shorter stretches
        are too rare to explain one of its length.
        """
        import numpy as np

        stretches: list[tuple[int, RepeatedRows]] = []
        lengths: list[int] = []
        rows_seen = 0
        for block, rows, due in self._iter_rows():
            usable = due & (rows >= 0).all((1, 2)) & ((rows != 0).any((1, 2)) | (self.shape[1] == 1))
            rows_seen += int(usable.sum())
            for begin, end, distance, weight in _find_repeats(_hash(rows), usable, block):
                lengths.append(weight)
                if weight >= (SHORTEST if distance == 1 else SHORTEST_COPY):
                    source = begin - distance
                    stretches.append(
                        (
                            weight,
                            RepeatedRows(
                                int(block.owners[begin]), int(block.positions[begin]), int(block.positions[end - 1]), distance,
                                int(block.owners[source]), int(block.positions[source]),
                            ),
                        )
                    )  # fmt: skip
        ordered = np.sort(np.array(lengths, np.int64))
        totals = np.concatenate([[0], np.cumsum(ordered)])
        found = []
        for weight, stretch in sorted(stretches, key=lambda item: -item[0]):
            shorter = int(totals[np.searchsorted(ordered, weight)])
            chance = max(shorter, 1) / max(rows_seen, 1)
            if rows_seen * chance**weight < CHANCE:
                found.append(stretch)
        return tuple(found)


def is_due(block: Block) -> NDArray[np.bool_]:
    """Bool [tokens]: whether a token's row is needed: all but the last of each sequence."""
    import numpy as np

    return np.asarray(block.positions < block.lengths[block.owners - block.first] - 1)


def _hash(rows: NDArray[Any]) -> NDArray[Any]:
    """Return a 64-bit number of each row: equal rows have equal ones, other rows other ones."""
    import numpy as np

    weights = np.random.default_rng(0).integers(1 << 62, (1 << 63) - 1, rows.shape[1] * rows.shape[2]) | 1
    with np.errstate(over="ignore"):
        total = np.zeros(len(rows), np.int64)
        for column, weight in zip(rows.reshape(len(rows), len(weights)).T, weights, strict=True):
            total += (column.astype(np.int64) + 1) * weight
    return total


def _find_repeats(hashes: NDArray[Any], usable: NDArray[np.bool_], block: Block) -> Iterator[tuple[int, int, int, int]]:
    """Yield (begin, end, distance, differing tokens) of each stretch of a block whose rows equal those `distance` tokens earlier.

    In a stretch at least half of the tokens differ from the earlier ones. The source of a row is the latest earlier equal row.
    """
    import numpy as np

    tokens, owners = block.column("tokens"), block.owners
    places = np.flatnonzero(usable)
    order = places[np.argsort(hashes[places], kind="stable")]
    same = hashes[order[1:]] == hashes[order[:-1]]
    distance = np.zeros(len(hashes), np.int64)
    distance[order[1:][same]] = (order[1:] - order[:-1])[same]
    repeats = np.flatnonzero(distance)
    if not len(repeats):
        return
    differs = tokens[repeats] != tokens[repeats - distance[repeats]]
    breaks = np.flatnonzero(
        (np.diff(repeats) != 1) | (np.diff(distance[repeats]) != 0) | (np.diff(owners[repeats]) != 0)
    )
    begins, ends = np.concatenate([[0], breaks + 1]), np.concatenate([breaks + 1, [len(repeats)]])
    weights = np.add.reduceat(differs.astype(np.int64), begins)
    for begin, end, weight in zip(begins.tolist(), ends.tolist(), weights.tolist(), strict=True):
        if 2 * weight >= end - begin:
            yield int(repeats[begin]), int(repeats[end - 1]) + 1, int(distance[repeats[begin]]), weight
