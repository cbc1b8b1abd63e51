"""Pictures of a series: the tensors that moved in each save, how far they moved, and the counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Literal

from ckptcheck.compare.bridge.family_table import NAME_NUMBER
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Series, State, choose_scale
from ckptcheck.text.formatting import count, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.runs.saves.save import Save
    from ckptcheck.runs.saves.save_series import SaveSeries
    from ckptcheck.runs.saves.strand import Strand

STATES = (
    State("not compared", "quiet", "the first save, or one that could not be read"),
    State("moved", "good"),
    State("unchanged", "notice", "as in the save before"),
    State("repeated", "bad", "as in an earlier save, although it moved in between or before"),
)
MOST_SAVES = 200
"""Columns; of a longer series the last saves are drawn."""
MOST_ROWS = 120
"""With more tensors, tensors whose names differ only in numbers share a row."""
MOST_CURVES = 8
"""Curves that a reader can tell apart by colour."""
Part = Literal["weights", "states"]
RASTER_RULES: Mapping[Part, tuple[str, ...]] = {
    "weights": ("SER001", "SER003", "SER004", "SER014", "SER016"),
    "states": ("SER001", "SER003"),
}
"""Rules whose findings are about saves, and so about a column of the picture."""


def draw_weight_rasters(series: SaveSeries, title: str) -> list[HeatMap | None]:
    """Draw which weights moved in which save, strand by strand."""
    return [draw_raster(strand, "weights", name) for name, strand in _name_strands(series, title)]


def draw_state_rasters(series: SaveSeries, title: str) -> list[HeatMap | None]:
    """Draw which optimizer states moved in which save, strand by strand."""
    return [draw_raster(strand, "states", name) for name, strand in _name_strands(series, title)]


def draw_all_updates(series: SaveSeries, title: str) -> list[Curves | None]:
    """Draw how far the weights moved, strand by strand."""
    return [draw_updates(strand, name) for name, strand in _name_strands(series, title)]


def draw_all_counters(series: SaveSeries, title: str) -> list[Curves | None]:
    """Draw the counters, strand by strand."""
    return [draw_counters(strand, name) for name, strand in _name_strands(series, title)]


def _name_strands(series: SaveSeries, title: str) -> list[tuple[str, Strand]]:
    """Return the strands, each with the title of its picture."""
    has_several = len(series.strands) > 1
    return [(f"{title}: {strand.name}" if has_several else title, strand) for strand in series.strands]


def draw_raster(strand: Strand, part: Part, title: str) -> HeatMap | None:
    """Draw tensors × saves; None if no save has such tensors."""
    saves = strand.digested[-MOST_SAVES:]
    names = sorted({name for save in saves for name in getattr(save, part)}, key=natural_sort_key)
    if not names:
        return None
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(NAME_NUMBER.sub("*", name) if len(names) > MOST_ROWS else name, []).append(name)
    cells: dict[tuple[int, int], HeatCell] = {}
    for column in range(len(saves)):
        judged = {name: _judge(saves, part, column, name) for name in names if name in getattr(saves[column], part)}
        for place, members in enumerate(rows.values()):
            found = {name: judged[name] for name in members if name in judged}
            if len(members) == 1 and found:
                cells[place, column] = HeatCell(state=found[members[0]], name=members[0])
            elif found:
                numbers = Counter(found.values())
                note = ", ".join(f"{number:,} {state}" for state, number in sorted(numbers.items()))
                cells[place, column] = HeatCell(
                    note=note, members={name: HeatCell(state=state, name=name) for name, state in found.items()}
                )
    caption = "Each column is a save, each row a tensor" + (
        " or several of one kind." if len(rows) < len(names) else "."
    )
    if len(saves) < len(strand.digested):
        caption += f" The first {count(len(strand.digested) - len(saves), 'save')} are not drawn."
    labels = tuple(label_saves(saves))
    return HeatMap(
        title,
        caption,
        tuple(rows),
        labels,
        cells,
        STATES,
        row_label="tensor",
        column_label="save",
        member_label="tensor",
        codes=RASTER_RULES[part],
    )


def draw_updates(strand: Strand, title: str) -> Curves | None:
    """Draw the median update of each kind of matrix over the saves; None if nothing was sampled twice."""
    kinds: dict[str, list[float | None]] = {}
    for place, interval in enumerate(strand.intervals):
        by_kind: dict[str, list[float]] = {}
        for name, size in interval.updates.items():
            if len(interval.after.weights[name].shape) >= 2:
                by_kind.setdefault(NAME_NUMBER.sub("*", name), []).append(size)
        for kind, sizes in by_kind.items():
            kinds.setdefault(kind, [None] * len(strand.intervals))[place] = median(sizes)
    if not kinds:
        return None
    most = sorted(kinds.items(), key=lambda item: -max((size for size in item[1] if size is not None), default=0.0))
    series = tuple(Series(kind, tuple(sizes)) for kind, sizes in most[:MOST_CURVES])
    caption = (
        "Root mean square of the change since the save before, divided by that of the weight, from elements that were sampled"
        " of each matrix; the median over the layers. 1.4 is another weight altogether."
    )
    scale = choose_scale(size for each in series for size in each.values if size)
    return Curves(
        title, caption, label_saves(strand.digested)[1:], series, "save", "relative update", scale, codes=("SER005",)
    )


def draw_counters(strand: Strand, title: str) -> Curves | None:
    """Draw each counter over the saves; None if no save has one."""
    names = sorted({name for save in strand.saves for name in save.counters})
    if not names:
        return None
    series = tuple(
        Series(name, tuple(save.counters.get(name) for save in strand.saves)) for name in names[:MOST_CURVES]
    )
    scale = choose_scale(value for each in series for value in each.values)
    caption = (
        "What the files of each save count. A counter that stands still while the steps rise is of an earlier save."
    )
    return Curves(title, caption, label_saves(strand.saves), series, "save", "", scale, codes=("SER006",))


def label_saves(saves: Iterable[Save]) -> tuple[str, ...]:
    """Return the labels of the saves: their steps."""
    return tuple(str(save.number) for save in saves)


def _judge(saves: tuple[Save, ...], part: Part, column: int, name: str) -> str:
    """Return the state of a tensor of a save."""
    if column == 0 or name not in getattr(saves[column - 1], part):
        return "not compared"
    content = getattr(saves[column], part)[name].content
    earlier = [getattr(save, part)[name].content for save in saves[:column] if name in getattr(save, part)]
    if earlier[-1] == content:
        return "repeated" if len(set(earlier)) > 1 else "unchanged"
    return "repeated" if content in earlier else "moved"
