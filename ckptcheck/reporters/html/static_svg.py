"""Draws heat maps, curves and histograms as SVG, for papers and for machines without a browser: the page's pictures, at rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby, pairwise
from math import ceil, floor, isfinite, log, log10
from statistics import median
from textwrap import wrap
from typing import Any

from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Histogram, Picture, Scale, Series, State
from ckptcheck.reporters.printable import printable

WIDTH = 960
MARGIN, LINE = 16, 18
LETTER = 6.3
"""Pixels of a letter of 11 pixels height, about."""
PLOT_HEIGHT = 280
LONGEST_LABEL = 48
"""Characters of a row's label that fit beside the drawing; a tensor's name is cut at its beginning."""
SOFT, INK, GRID = "#55606e", "#1a1f26", "#dfe3e8"
CALM = ("good", "quiet")
"""A cell in such a state, or in none, has the colour of its value, any other that of its state."""
PATTERNS = {
    "notice": '<path d="M0 4H8" stroke="#fff" stroke-width="1.4"/>',
    "change": '<circle cx="4" cy="4" r="1.6" fill="#fff"/>',
    "warn": '<path d="M0 8L8 0" stroke="#fff" stroke-width="1.4"/>',
    "bad": '<path d="M0 8L8 0M0 0L8 8" stroke="#fff" stroke-width="1.4"/>',
    "gone": '<path d="M0 0H8V8H0Z" fill="none" stroke="#6a1b9a" stroke-dasharray="3 2"/>',
}
"""Tone → the pattern over its colour, for readers who cannot distinguish the colours."""


def draw_svg(picture: Picture) -> str | None:
    """Return the picture as a whole file; None for a table of texts, or if there is nothing to draw."""
    match picture:
        case HeatMap():
            return _draw_heat_map(picture)
        case Curves():
            xs = picture.x
            ascends = all(not isinstance(x, str) for x in xs) and all(a < b for a, b in pairwise(xs))  # type: ignore[operator]
            positions = [float(x) for x in xs] if ascends else [float(at) for at in range(len(xs))]
            return _draw_lines(picture, positions, [_write(x) for x in xs])
        case Histogram():
            return _draw_lines(picture, list(picture.edges), [_write(edge) for edge in picture.edges])
        case _:
            return None


@cache
def _palette() -> dict[str, Any]:
    text = (files("ckptcheck.reporters.html") / "parts/palette.json").read_text(encoding="utf-8")
    palette: dict[str, Any] = json.loads(text)
    return palette


def _write(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return "–" if value is None else f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


@dataclass(frozen=True)
class _Axis:
    """Numbers → pixels from one end to the other."""

    least: float
    most: float
    begin: float
    end: float
    scale: Scale = "linear"

    def place(self, value: float) -> float:
        if self.most == self.least:
            return (self.begin + self.end) / 2
        if self.scale == "log":
            share = log(value / self.least) / log(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, number: int) -> list[float]:
        """Return about so many round numbers within the axis."""
        if self.scale == "log":
            powers = range(floor(log10(self.least)), ceil(log10(self.most)) + 1)
            step = max(1, ceil(len(powers) / number))
            found = [
                factor * 10.0**power for power in powers[::step] for factor in ((1, 2, 5) if len(powers) < 5 else (1,))
            ]
        else:
            rough = (self.most - self.least) / number or 1.0
            size = 10.0 ** floor(log10(rough))
            width = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough * (1 - 1e-9))
            found = [at * width for at in range(ceil(self.least / width), floor(self.most / width + 1e-6) + 1)]
        return [tick for tick in found if self.least <= tick <= self.most] or [self.least, self.most]


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, colour: str = SOFT, more: str = ""
) -> str:
    shown = escape(printable(text))
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{more}>{shown}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def _fill(tone: str, x: float, y: float, width: float, height: float) -> str:
    over = _rect(x, y, width, height, f"url(#{tone})") if tone in PATTERNS else ""
    return _rect(x, y, width, height, _palette()["TONES"]["light"][tone]) + over


def _ramp(share: float) -> str:
    ramp = _palette()["RAMP"]
    at = min(max(share, 0.0), 1.0) * (len(ramp) - 1)
    low = min(int(at), len(ramp) - 2)
    pairs = [(int(ramp[low][digit : digit + 2], 16), int(ramp[low + 1][digit : digit + 2], 16)) for digit in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (two - one) * (at - low)):02x}" for one, two in pairs)


def _frame(picture: Picture, body: Iterable[str], height: float, legend: Sequence[tuple[str, str, float]]) -> str:
    """Return the file: title, caption, legend (drawing at 0, 0; text; width of the drawing), and what stands below them."""
    y = MARGIN + 14.0
    parts = [_text(MARGIN, y, picture.title, size=15, colour=INK, more=' font-weight="600"')]
    for line in wrap(picture.caption, 140):
        y += LINE
        parts.append(_text(MARGIN, y, line, size=12))
    x = float(MARGIN)
    y += LINE + 6
    for drawing, text, width in legend:
        long = width + 6 + len(text) * LETTER + 18
        if x > MARGIN and x + long > WIDTH - MARGIN:
            x, y = float(MARGIN), y + LINE
        parts.append(f'<g transform="translate({x:g} {y - 10:g})">{drawing}</g>{_text(x + width + 6, y, text)}')
        x += long
    y += 10 if legend else -LINE
    patterns = "".join(
        f'<pattern id="{tone}" width="8" height="8" patternUnits="userSpaceOnUse">{drawing}</pattern>'
        for tone, drawing in PATTERNS.items()
    )
    whole = y + height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{whole:g}" viewBox="0 0 {WIDTH} {whole:g}" role="img"'
        f' font-family="system-ui, sans-serif"><title>{escape(printable(picture.title))}</title><defs>{patterns}</defs>'
        f'{_rect(0, 0, WIDTH, whole, "#ffffff")}{"".join(parts)}<g transform="translate(0 {y:g})">{"".join(body)}</g></svg>\n'
    )


def _draw_heat_map(picture: HeatMap) -> str:
    states = {state.name: state for state in picture.states}
    values = [one.value for cell in picture.cells.values() for one in (*cell.members.values(), cell)]
    numbers = [value for value in (_keep_shown(value, picture.scale) for value in values) if value is not None]
    colours = _Axis(min(numbers), max(numbers), 0, 1, picture.scale) if numbers else None
    labels = [label if len(label) <= LONGEST_LABEL else f"…{label[1 - LONGEST_LABEL :]}" for label in picture.rows]
    left = MARGIN + max(map(len, labels), default=0) * LETTER + 8
    wide = min((WIDTH - MARGIN - left) / max(len(picture.columns), 1), 60.0)
    high = 16.0 if len(picture.rows) <= 120 else 8.0
    gap = 1 if wide >= 6 else 0
    body = [
        _text(left - 6, row * high + high - 4, label, anchor="end")
        for row, label in enumerate(labels)
        if high > 10 or row % 2 == 0
    ]
    for row in range(len(picture.rows)):
        cells = [picture.cells.get((row, column)) for column in range(len(picture.columns))]
        looks = enumerate(_choose_look(picture.scale, cell, states, colours) for cell in cells)
        # where no line stands between them, neighbours that look alike are one rectangle
        for _, run in groupby(looks, key=lambda entry: entry if gap else entry[1]):
            (place, look), *others = run
            box = (left + place * wide, row * high, (1 + len(others)) * wide - gap, high - gap)
            if look is not None:
                body.append(_rect(*box, look) if look.startswith("#") else _fill(look, *box))
    bottom = len(picture.rows) * high
    every = max(1, ceil((max(map(len, picture.columns), default=0) * LETTER + 4) / max(wide, 0.1)))
    body += [
        _text(left + column * wide, bottom + 12, picture.columns[column][: int((WIDTH - left) / LETTER)])
        for column in range(0, len(picture.columns), every)
    ]
    return _frame(picture, body, bottom + 16, _list_heat_legend(picture, states, colours))


def _keep_shown(value: float | None, scale: Scale) -> float | None:
    """Return a number that has a place on the axis; None for others."""
    return value if value is not None and isfinite(value) and (scale == "linear" or value > 0) else None


def _choose_look(scale: Scale, cell: HeatCell | None, states: dict[str, State], colours: _Axis | None) -> str | None:
    """Return the colour of a cell, or its tone; None for no cell. One that stands for several shows the gravest and the median."""
    if cell is None:
        return None
    gravity = {name: place for place, name in enumerate(states)}
    several = list(cell.members.values()) or [cell]
    state = states.get(max((one.state for one in several), key=lambda name: gravity.get(name, -1)))
    known = [one.value for one in several if one.value is not None and isfinite(one.value)]
    if not known or colours is None or (state is not None and state.tone not in CALM):
        return state.tone if state is not None else "quiet"
    value = median(known)
    if colours.least == colours.most:
        return _ramp(0.5)
    return _ramp(0.0 if scale == "log" and value <= 0 else colours.place(value))


def _list_heat_legend(
    picture: HeatMap, states: dict[str, State], colours: _Axis | None
) -> list[tuple[str, str, float]]:
    counts = Counter(one.state for cell in picture.cells.values() for one in (list(cell.members.values()) or [cell]))
    legend = []
    if colours is not None:
        ramp = "".join(_rect(at * 3, 0, 3, 11, _ramp(at / 29)) for at in range(30))
        sense = ", logarithmic" if picture.scale == "log" else ""
        legend.append(
            (ramp, f"{picture.value_label or 'value'} {_write(colours.least)} to {_write(colours.most)}{sense}", 90.0)
        )
    for state in states.values():
        if counts[state.name]:
            meaning = f": {state.meaning}" if state.meaning else ""
            legend.append((_fill(state.tone, 0, 0, 12, 12), f"{state.name}{meaning} ({counts[state.name]:,})", 12.0))
    return legend


def _draw_lines(picture: Curves | Histogram, positions: list[float], texts: list[str]) -> str | None:
    is_filled = isinstance(picture, Histogram)
    has_steps = is_filled or (isinstance(picture, Curves) and picture.steps)
    series = [(one, [_keep_shown(value, picture.scale) for value in one.values]) for one in picture.series]
    known = [value for _, values in series for value in values if value is not None]
    if not known or not positions:
        return None
    least, most = min(known), max(known)
    if is_filled:
        least = least / 2 if picture.scale == "log" else min(0.0, least)
    elif least == most:
        least, most = (least / 2, most * 2) if picture.scale == "log" else (least - 1, most + 1)
    y_axis = _Axis(least, most, PLOT_HEIGHT, 22, picture.scale)
    ticks = y_axis.ticks(5)
    left = MARGIN + max(len(_write(tick)) for tick in ticks) * LETTER + 8
    x_axis = _Axis(positions[0], positions[-1], left, WIDTH - 2 * MARGIN)
    body = [_text(MARGIN, 8, picture.y_label)] if picture.y_label else []
    for tick in ticks:
        y = y_axis.place(tick)
        body.append(f'<path d="M{left:g} {y:g}H{WIDTH - 2 * MARGIN}" stroke="{GRID}"/>')
        body.append(_text(left - 6, y + 4, _write(tick), anchor="end"))
    every = max(1, ceil((max(map(len, texts)) * LETTER + 12) * len(texts) / (WIDTH - left)))
    for at in range(0, len(texts), every):
        anchor = "start" if at == 0 and len(texts[at]) > 6 else "middle"
        body.append(_text(x_axis.place(positions[at]), PLOT_HEIGHT + 16, texts[at][:60], anchor=anchor))
    body.append(_text((left + WIDTH) / 2, PLOT_HEIGHT + 32, picture.x_label, anchor="middle"))
    legend = []
    for number, (one, values) in enumerate(series):
        colour, stroke = _choose_stroke(one, number)
        for points in _split_runs(values):
            spots = [(x_axis.place(positions[at]), y_axis.place(value)) for at, value in points]
            if one.is_dotted or (len(spots) == 1 and not is_filled):
                body += [f'<circle cx="{x:g}" cy="{y:g}" r="3" fill="{colour}"/>' for x, y in spots]
                continue
            if is_filled:  # a bin's count holds up to its upper edge
                spots.append((x_axis.place(positions[points[-1][0] + 1]), spots[-1][1]))
            body.append(f'<path d="{_trace(spots, has_steps)}" {stroke}/>')
        sample = f'<circle cx="13" cy="6" r="3" fill="{colour}"/>' if one.is_dotted else f'<path d="M1 6H25" {stroke}/>'
        legend.append((sample, one.name, 26.0))
    lines = {one.name: values for one, values in series}
    for mark in picture.marks if isinstance(picture, Curves) else ():
        value = lines[mark.series][mark.index] if mark.series in lines else None
        if value is not None:
            x, y = x_axis.place(positions[mark.index]), y_axis.place(value)
            aside, anchor = (-9, "end") if x > WIDTH * 0.6 else (9, "start")
            body.append(f'<circle cx="{x:g}" cy="{y:g}" r="5.5" fill="none" stroke="{INK}" stroke-width="1.5"/>')
            body.append(_text(x + aside, y + 4, mark.text[:90], anchor=anchor, colour=INK))
    return _frame(picture, body, PLOT_HEIGHT + 36, legend)


def _choose_stroke(series: Series, number: int) -> tuple[str, str]:
    """Return the colour of a line, and the attributes with which it is drawn."""
    lines, dashes = _palette()["LINES"], _palette()["DASHES"]
    colour = _palette()["TONES"]["light"][series.tone] if series.tone else lines[number % len(lines)]
    dash = " ".join(map(str, dashes[number // len(lines) % len(dashes)]))
    return colour, f'stroke="{colour}" stroke-width="1.8" fill="none"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _split_runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the runs of values without a gap, each value with its place."""
    for is_there, run in groupby(enumerate(values), key=lambda entry: entry[1] is not None):
        if is_there:
            yield [(at, value) for at, value in run if value is not None]


def _trace(spots: Sequence[tuple[float, float]], has_steps: bool) -> str:
    first, *rest = spots
    path = f"M{first[0]:.4g} {first[1]:.4g}"
    return path + "".join(f"H{x:.4g}V{y:.4g}" if has_steps else f"L{x:.4g} {y:.4g}" for x, y in rest)
