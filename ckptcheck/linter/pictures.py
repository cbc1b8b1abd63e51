"""Pictures of what was checked, for the HTML report: heat maps, curves, histograms and tables of texts.

A picture is plain data: numbers, states and names. It knows nothing of HTML, and evidence knows nothing of pictures: the table in
reporters/evidence_pictures.py maps evidence to the functions that draw it, which run only for a format that shows pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

import msgspec

Tone = Literal["good", "quiet", "notice", "change", "warn", "bad", "gone"]
"""How a state is drawn. good: as it should be. quiet: nothing to report. notice, change: different, maybe on purpose. warn, bad:
wrong. gone: not there. Each has a colour and a pattern, so that a reader need not distinguish colours."""
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class State:
    """A state that a cell can be in, as the legend explains it."""

    name: str
    tone: Tone
    meaning: str = ""
    """A sentence for the legend; "" if the name is enough."""


class HeatCell(msgspec.Struct, frozen=True):
    """One cell of a heat map: a struct, because a page of a large model makes hundreds of thousands."""

    value: float | None = None
    """The number that decides the colour; None if only the state does."""
    state: str = ""
    """Name of one of the picture's states; "" if only the value counts."""
    note: str = ""
    """Text that a reader sees beside name, value and state when pointing at the cell."""
    name: str = ""
    """The tensor as findings name it (`Finding.key`, `Finding.names`): links lead from the finding to the cell and back."""
    members: Mapping[str, HeatCell] = {}
    """Label → cells that this one combines (experts). It shows their median and the gravest state; a click opens them."""


class AlikeCells(Mapping[str, HeatCell]):
    """Members of a cell that differ only in their name, in which each has its label: a large model has thousands in each layer."""

    def __init__(self, labels: Mapping[str, object], cell: HeatCell, begin: str, end: str) -> None:
        """Keep the labels, the keys of a mapping; what the cells have in common; and what their names have around the label."""
        self.labels, self.cell, self.begin, self.end = labels, cell, begin, end

    def __getitem__(self, label: str) -> HeatCell:
        """Make the cell of a label."""
        if label not in self.labels:
            raise KeyError(label)
        return msgspec.structs.replace(self.cell, name=f"{self.begin}{label}{self.end}")

    def __iter__(self) -> Iterator[str]:
        """Yield the labels."""
        return iter(self.labels)

    def __len__(self) -> int:
        """Count the labels."""
        return len(self.labels)


@dataclass(frozen=True)
class HeatMap:
    """Rows × columns of values and states: layer × module, tensors × syncs, layer × module × rank."""

    title: str
    caption: str
    """One or two sentences: what the picture shows, and how to read it."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[int, int], HeatCell]
    """(row, column), counted from 0 → cell. What is not in it stays empty."""
    states: tuple[State, ...] = ()
    """From harmless to grave."""
    value_label: str = ""
    """What the value is, with its unit: "largest magnitude"."""
    scale: Scale = "log"
    row_label: str = "module"
    column_label: str = "layer"
    member_label: str = "expert"
    codes: tuple[str, ...] = field(default=(), kw_only=True)
    """Rules whose findings the picture shows as a whole: links lead there and back."""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    values: tuple[float | None, ...]
    """One for each x; None leaves a gap."""
    tone: Tone | None = None
    """None: the next colour of the palette."""
    keys: tuple[str, ...] = ()
    """The tensors that the points belong to, as findings name them; () for none."""
    is_dotted: bool = False
    """Draw points and no line between them."""


@dataclass(frozen=True)
class Mark:
    """A point of a series that the reader should look at."""

    series: str
    index: int
    text: str


@dataclass(frozen=True)
class Curves:
    """Lines over a common x axis."""

    title: str
    caption: str
    x: tuple[float | str, ...]
    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    scale: Scale = "linear"
    """Of the y axis. On a logarithmic one, numbers from 0 down are gaps."""
    steps: bool = False
    """Each value holds until the next one: a ladder, not a slope."""
    marks: tuple[Mark, ...] = ()
    codes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Histogram:
    """How often values occur, for one series or several over the same edges."""

    title: str
    caption: str
    edges: tuple[float, ...]
    """One more than there are bins, ascending."""
    series: tuple[Series, ...]
    """The counts of each bin."""
    x_label: str = ""
    y_label: str = "count"
    scale: Scale = "linear"
    """Of the counts."""
    codes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class TextCell:
    """One cell of a table of texts."""

    text: str
    state: str = ""
    note: str = ""
    """A second, smaller line: where the text comes from."""
    name: str = ""
    """As findings name it, so that links lead here."""


@dataclass(frozen=True)
class TextTable:
    """A table of texts whose cells have states: settings side by side, tokens in their text."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TextCell, ...], ...]
    states: tuple[State, ...] = ()
    codes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class NoPicture:
    """The reason for a missing picture."""

    title: str
    caption: str


Picture = HeatMap | Curves | Histogram | TextTable | NoPicture

WIDE_RANGE = 100.0
"""From this ratio between the largest and the smallest number on, an axis is logarithmic."""


def keep_finite(value: float | None) -> float | None:
    """Return a number that can be drawn; None, a gap, for NaN and infinity."""
    return value if value is not None and isfinite(value) else None


def choose_scale(values: Iterable[float | None]) -> Scale:
    """Return the scale on which all values can be seen: a logarithmic axis has no room for 0.

    >>> choose_scale([1e-6, None, 0.5]), choose_scale([0.0, 0.5]), choose_scale([])
    ('log', 'linear', 'linear')
    """
    known = [value for value in values if value is not None and isfinite(value)]
    return "log" if known and min(known) > 0 and max(known) >= WIDE_RANGE * min(known) else "linear"
