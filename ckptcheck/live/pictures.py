"""Pictures of the measurements of live runs, for the HTML report: a matrix, the outputs of modules, a trial of refit."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import (
    Curves,
    HeatCell,
    HeatMap,
    Mark,
    NoPicture,
    Series,
    State,
    choose_scale,
    keep_finite,
)
from ckptcheck.live.refit.trace_queries import compare_scoring, stale_parameters, why_not_scrambled
from ckptcheck.text.formatting import count, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.compare.activations.points import Point
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.live.experiments.matrix.trace import CellValue, MatrixTrace, Row
    from ckptcheck.live.localize.localization import Localization
    from ckptcheck.live.refit.observations import Key, Observations, Scoring, Sync

CELL_STATES = (
    State("within the limit", "good"),
    State("beyond the limit", "bad"),
    State("not comparable", "gone", "nothing could be compared, or a logprob is not finite"),
)

OUTPUT_STATES = (
    State("equal", "good", "within what rounding explains"),
    State("not compared", "gone", "only one side has it, or with another shape"),
    State("differs", "warn", "beyond the limit, after the module at which the sides diverge"),
    State("parts here", "bad", "the first module beyond the limit"),
    State("not finite", "bad", "NaN or Inf"),
)
TENSOR_STATES = (
    State("written", "good", "marks show that a sync wrote it, and it equals a cold load bit for bit"),
    State("equal", "quiet", "it equals a cold load bit for bit; no mark shows whether a sync wrote it"),
    State("not seen", "gone", "its numbers can be read on neither side"),
    State("differs", "notice", "no parameter, and other than in a cold load; the findings say where that matters"),
    State("extra", "change", "a cold load does not have it"),
    State("stale", "warn", "it holds what it held before the last step"),
    State("lost", "bad", "a cold load has it, and here it is missing or cannot be read"),
    State("wrong", "bad", "a parameter that is other than in a cold load"),
    State("not written", "bad", "marks from before the sync are still in it"),
)
GRAVITY = {state.name: place for place, state in enumerate(TENSOR_STATES)}
MOST_TOKENS = 600
"""Tokens that are drawn: the first ones."""


def draw_matrix(trace: MatrixTrace, title: str) -> Picture:
    """Draw data, decoding, batch and layout × pair and length, with how far each cell is from perfect."""
    if not trace.values:
        return NoPicture(title, "no cell was measured")
    rows = list(dict.fromkeys(_label_row(row) for row in trace.table_rows))
    lengths = sorted({row.length for row in trace.table_rows})
    columns = [(pair, length) for pair in trace.pairs for length in lengths]
    cells = {
        (rows.index(_label_row(row)), columns.index((pair, row.length))): _describe_cell(trace, row, pair, value)
        for (row, pair), value in trace.values.items()
    }
    limit = trace.thresholds.mult_prob_error
    return HeatMap(
        title,
        f"Each cell is a measurement: mean exp|Δ| over its tokens, less 1, so that 0 is perfect. The limit is {limit - 1:.3g}.",
        tuple(rows),
        tuple(f"{length:,}" if len(trace.pairs) == 1 else f"{pair} {length:,}" for pair, length in columns),
        cells,
        CELL_STATES,
        "mult_prob_error − 1",
        "log",
        "set-up",
        "tokens" if len(trace.pairs) == 1 else "pair and tokens",
        codes=("PRB030",),
    )


def _label_row(row: Row) -> str:
    return f"{row.data}, {row.decoding}, batch {row.batch}{f', {row.layout}' if row.layout else ''}"


def _describe_cell(trace: MatrixTrace, row: Row, pair: str, value: CellValue) -> HeatCell:
    if not isfinite(value.error):
        return HeatCell(None, "not comparable")
    floor = (trace.floor_of(row, pair) or 1.0) - 1
    notes = [f"± {value.spread:.2g}", f"mean |Δ| {value.mean:.3g} nats over {value.tokens:,} tokens"]
    if floor > 0:
        notes.append(f"{(value.error - 1) / floor:.3g} times the floor")
    is_beyond = value.error > trace.thresholds.mult_prob_error
    return HeatCell(value.error - 1, CELL_STATES[is_beyond].name, ", ".join(notes))


def draw_modules(evidence: Localization, title: str) -> HeatMap | None:
    """Draw the relative difference of every output, with a cell for each pair of ranks inside."""
    cells: dict[str, dict[str, HeatCell]] = {}
    for part in evidence.replicas:
        for point in part.points:
            cells.setdefault(point.name, {})[part.ranks if evidence.further else ""] = _draw_point(part, point)
        for side, names in part.unmatched.items():
            for name in names:
                cell = HeatCell(state="not compared", note=f"only {side} has it, or the shapes differ", name=name)
                cells.setdefault(name, {}).setdefault(part.ranks if evidence.further else "", cell)
    caption = (
        f"Each cell is the output of a module: the norm of {evidence.sides[1]} − {evidence.sides[0]}, divided by the norm of"
        f" {evidence.sides[0]}. The limit is {evidence.limit:.2g}."
    )
    return draw_layer_map(
        title, caption, cells, OUTPUT_STATES, value_label="relative difference", member_label="pair of ranks"
    )


def _draw_point(part: Localization, point: Point) -> HeatCell:
    if point.non_finite_sides:
        return HeatCell(state="not finite", note=f"on {' and '.join(point.non_finite_sides)}", name=point.name)
    is_first = part.first_diverging is not None and point.name == part.first_diverging.name
    state = "parts here" if is_first else "differs" if point.relative > part.limit else "equal"
    first = f", from token {point.first_token} of {point.tokens} on" if point.first_token is not None else ""
    return HeatCell(point.relative, state, f"cosine {point.cosine:.6f}, largest {point.largest:.3g}{first}", point.name)


def draw_course(evidence: Localization, title: str) -> Curves | None:
    """Draw the relative difference from the embedding to the logits; None for fewer than two points."""
    names = list(dict.fromkeys(point.name for part in evidence.replicas for point in part.points))
    if len(names) < 2:
        return None
    series, marks = [], []
    for part in evidence.replicas:
        found = {point.name: point for point in part.points}
        label = part.ranks or "relative difference"
        values = tuple(keep_finite(found[name].relative) if name in found else None for name in names)
        series.append(Series(label, values, keys=tuple(names)))
        if part.first_diverging is not None:
            marks.append(Mark(label, names.index(part.first_diverging.name), part.first_diverging.name))
    series.append(Series("limit", (evidence.limit,) * len(names)))
    caption = "The outputs in the order of execution. Rounding grows slowly; where the sides diverge, the line jumps."
    return Curves(
        title, caption, tuple(names), tuple(series), "module", "relative difference", "log", marks=tuple(marks)
    )


def draw_tensor_states(trace: Observations, title: str) -> HeatMap | NoPicture | None:
    """Draw the gravest state of each tensor over all syncs that were compared with a cold load."""
    compared = [sync for sync in trace.syncs if sync.manifest]
    if not compared:
        return NoPicture(title, "no sync was compared with a cold load of the same weights")
    history: dict[Key, list[tuple[Sync, str]]] = {}
    for sync in compared:
        for key, state in _judge_tensors(trace, sync).items():
            history.setdefault(key, []).append((sync, state))
    by_name: dict[str, dict[int, HeatCell]] = {}
    for key, states in history.items():
        by_name.setdefault(key[1], {})[key[0]] = _make_tensor_cell(key, states)
    return _make_tensor_map(title, by_name, compared)


def _judge_tensors(trace: Observations, sync: Sync) -> dict[Key, str]:
    """Return the state of each tensor of the engine, or of the cold load, after one sync."""
    stale = stale_parameters(trace, sync)
    marked = trace.scrambled.names if sync.was_marked and not why_not_scrambled(trace) else frozenset()
    states: dict[Key, str] = {}
    for key in {**sync.reference, **sync.manifest}:
        if key in sync.missing_tensors or key in sync.unreadable_tensors:
            states[key] = "lost"
        elif key in sync.unwritten_parts:
            states[key] = "not written"
        elif key in stale:
            states[key] = "stale"
        elif key in sync.differing_tensors:
            states[key] = "wrong" if sync.manifest[key].kind == "parameter" else "differs"
        elif key in sync.extra_tensors:
            states[key] = "extra"
        elif sync.manifest[key].opaque or sync.reference[key].opaque:
            states[key] = "not seen"
        else:
            states[key] = "written" if key in marked else "equal"
    return states


def _make_tensor_cell(key: Key, states: list[tuple[Sync, str]]) -> HeatCell:
    seen = {state for _, state in states}
    # one marked sync proves that updates write the tensor; after the others it is merely equal
    worst = "written" if seen == {"written", "equal"} else max(seen, key=GRAVITY.__getitem__)
    notes = []
    if len(seen) > 1 and worst != "written":
        notes.append("; ".join(f"sync {sync.number}: {state}" for sync, state in states))
    for sync, _ in states:
        if (part := sync.unwritten_parts.get(key)) is not None:
            left = part.sentinel_count + part.nan_count
            notes.append(f"sync {sync.number} left {left:,} of {part.total:,} elements unwritten")
        entry = sync.manifest.get(key)
        if entry is not None and entry.opaque and (reason := f"cannot be read: {entry.opaque}") not in notes:
            notes.append(reason)
    return HeatCell(state=worst, note="; ".join(notes), name=key[1])


def _make_tensor_map(title: str, by_name: Mapping[str, Mapping[int, HeatCell]], syncs: list[Sync]) -> HeatMap | None:
    ranks = {rank for cells in by_name.values() for rank in cells}
    names = sorted(by_name, key=natural_sort_key)
    which = "after the sync" if len(syncs) == 1 else f"after {count(len(syncs), 'sync')}, the gravest state of all"
    inside = f" on {count(len(ranks), 'rank')}: a click opens them" if len(ranks) > 1 else ""
    return draw_layer_map(
        title,
        f"Each cell is a tensor of the engine{inside}, beside a cold load of the same weights, {which}.",
        {
            name: {str(rank): cell for rank, cell in by_name[name].items()}
            if len(ranks) > 1
            else next(iter(by_name[name].values()))
            for name in names
        },
        TENSOR_STATES,
        member_label="expert" if len(ranks) == 1 else "rank",
    )


def draw_gap_to_trainer(trace: Observations, title: str) -> Curves | None:
    """Draw the difference from the trainer before and after each sync; None without scores."""
    if not trace.scorings:
        return None
    diffs = [compare_scoring(scoring) for scoring in trace.scorings]
    allowed = trace.noise_floor.trainer_tolerance
    lines: dict[str, list[float | None]] = {
        "largest": [diff.trainer.most for diff in diffs],
        "mean": [diff.trainer.mean for diff in diffs],
        "largest, decoding the trainer's tokens": [diff.forced.most if diff.forced else None for diff in diffs],
        "largest that is allowed": [allowed.most] * len(diffs),
        "mean that is allowed": [allowed.mean] * len(diffs),
    }
    series = tuple(
        Series(name, tuple(map(keep_finite, values)))
        for name, values in lines.items()
        if any(value is not None for value in values)
    )
    caption = (
        "The cold load is before any sync. The limits come from how far each side is from itself over the same weights."
        " A gap in a line: not measured, or not a finite number."
    )
    scale = choose_scale([value for each in series for value in each.values])
    labels = tuple(map(_label_scoring, trace.scorings))
    return Curves(title, caption, labels, series, "after", "nats", scale, codes=("REF012", "REF013"))


def draw_token_gaps(trace: Observations, title: str) -> Curves | None:
    """Draw engine minus trainer for each token, once for each scoring of the sequences; a number that is not finite is a gap."""
    lines = {
        _label_scoring(scoring): [
            keep_finite(engine - trainer)
            for scores, trainer_scores in zip(scoring.engine, scoring.trainer, strict=False)
            for engine, trainer in zip(scores.prompt_logprobs, trainer_scores, strict=False)
        ][:MOST_TOKENS]
        for scoring in trace.scorings
    }
    longest = max(map(len, lines.values()), default=0)
    if not longest:
        return None
    series = tuple(Series(name, (*values, *[None] * (longest - len(values)))) for name, values in lines.items())
    caption = (
        "Engine minus trainer for each token of the scored sequences, in their order. A name below hides its line."
    )
    return Curves(title, caption, tuple(range(1, longest + 1)), series, "token", "nats", codes=("REF010", "REF012"))


def _label_scoring(scoring: Scoring) -> str:
    return f"sync {scoring.after_sync}" if scoring.after_sync else "cold load"
