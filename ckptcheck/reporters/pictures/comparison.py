"""Draws a comparison: the state of each tensor, layer by module."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.compare.matching.difference_causes import diagnose_differences
from ckptcheck.compare.matching.quantized.swapped_weights import find_swapped_weights
from ckptcheck.linter.pictures import HeatCell, HeatMap, State
from ckptcheck.text.formatting import format_shape, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.compare.matching.comparison import Comparison
    from ckptcheck.compare.matching.equality import CompareResult
    from ckptcheck.compare.matching.pairing import TensorPair

STATES = (
    State("equal", "good", "bit for bit, or within the tolerance"),
    State("quantized", "good", "within what rounding explains"),
    State("merged", "good", "changed by the adapter"),
    State("extra", "quiet", "only the second side has it"),
    State("cast", "notice", "equal after a cast"),
    State("swapped", "change", "holds what belongs elsewhere"),
    State("stale", "warn", "still as in the previous version"),
    State("missing", "gone", "only the first side has it"),
    State("not compared", "bad", "it could not be read or compared"),
    State("other shape", "bad"),
    State("different", "bad"),
)
SWAPPED = frozenset({"layer", "expert", "reordered"})
"""Causes that say that a tensor holds another one's numbers."""


def draw_comparison(comparison: Comparison, title: str) -> HeatMap | None:
    """Return the heat map; None if neither side has a tensor. It asks for the causes only if tensors differ."""
    cells = {cell.name: cell for cell in sorted(_list_cells(comparison), key=lambda cell: natural_sort_key(cell.name))}
    caption = f"Each cell is a tensor of {comparison.first.target} and what {comparison.second.target} has for it."
    return draw_layer_map(title, caption, cells, STATES)


def _list_cells(comparison: Comparison) -> Iterator[HeatCell]:
    """Yield a cell for every tensor of either side."""
    result = comparison.match_result
    differences = comparison.value_differences
    different = {pair.name: (pair, how) for pair, _, how in differences.different}
    beyond = {
        pair.name: distance for pair, distance, first in differences.quantized if distance.is_mismatch(came_first=first)
    }
    quantized = {pair.name for pair, _, _ in differences.quantized}
    casts = {pair.name: how for pair, how in comparison.comparable_pairs if not how.first == how.second == how.target}
    compared = {pair.name for pair, _ in comparison.comparable_pairs} | quantized
    causes = (
        {name: verdict.causes for verdict in diagnose_differences(comparison) for name in verdict.tensors}
        if different
        else {}
    )
    sentences = (
        {name: verdict.sentence for verdict in diagnose_differences(comparison) for name in verdict.tensors}
        if different
        else {}
    )
    for pair in result.pairs:
        name, note = pair.name, _name_both(pair)
        if name in different:
            codes = causes.get(name, ())
            state = "stale" if "stale" in codes else "swapped" if SWAPPED & {*codes} else "different"
            cause = sentences.get(name, "") if "unknown" not in codes else ""
            yield HeatCell(state=state, note=_join(_describe_difference(*different[name]), cause, note), name=name)
        elif name in beyond:
            swapped = find_swapped_weights(comparison).get(name)
            cause = f"holds {swapped}" if swapped else f"{beyond[name].rms:.2g} steps of the grid apart on average"
            yield HeatCell(state="swapped" if swapped else "different", note=_join(cause, note), name=name)
        elif comparison.adapter is not None and comparison.adapter.changes(pair.names[0]):
            yield HeatCell(state="merged", note=note, name=name)
        elif name in quantized:
            yield HeatCell(state="quantized", note=note, name=name)
        elif name not in compared or any(name in label for label in differences.unread):
            yield HeatCell(state="not compared", note=note, name=name)
        elif name in casts:
            yield HeatCell(state="cast", note=_join(f"{casts[name].first} ↔ {casts[name].second}", note), name=name)
        else:
            yield HeatCell(state="equal", note=note, name=name)
    for pair in result.shape_mismatches:
        shapes = f"{format_shape(pair.first.shape)} ↔ {format_shape(pair.second.shape)}"
        yield HeatCell(state="other shape", note=_join(shapes, _name_both(pair)), name=pair.name)
    for state, names in (("missing", result.missing), ("extra", result.extra)):
        for name, stored in names.items():
            yield HeatCell(state=state, note=f"stored as {stored}" if stored != name else "", name=name)


def _describe_difference(pair: TensorPair, result: CompareResult) -> str:
    text = f"{result.different:,} of {prod(pair.first.shape):,} numbers differ"
    return text + (f", at most {result.largest:.3g} apart" if result.largest else "")


def _name_both(pair: TensorPair) -> str:
    """Return the stored names, if they are not the plain one."""
    if pair.names == (pair.name, pair.name):
        return ""
    return (
        f"stored as {pair.names[0]} ↔ {pair.names[1]}"
        if pair.names[0] != pair.names[1]
        else f"stored as {pair.names[0]}"
    )


def _join(*texts: str) -> str:
    return "; ".join(filter(None, texts))
