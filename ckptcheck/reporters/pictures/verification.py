"""Draws the state of each tensor of a manifest, layer by module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import HeatCell, HeatMap, State
from ckptcheck.text.formatting import format_shape, natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.compare.verification import Verification

STATES = (
    State("unchanged", "good", "the same bytes"),
    State("moved", "notice", "the same bytes in another file"),
    State("renamed", "change", "the same bytes under another name"),
    State("new", "change", "the manifest does not list it"),
    State("not read", "gone", "its bytes could not be read"),
    State("vanished", "gone", "the manifest lists it"),
    State("changed", "bad"),
)


def draw_verification(evidence: Verification, title: str) -> HeatMap | None:
    """Return the heat map; None if neither side has a tensor."""
    cells = {cell.name: cell for cell in _list_cells(evidence)}
    caption = f"Each cell is a tensor of the manifest, or of {evidence.target} as it is now."
    ordered = {name: cells[name] for name in sorted(cells, key=natural_sort_key)}
    return draw_layer_map(title, caption, ordered, STATES)


def _list_cells(evidence: Verification) -> Iterator[HeatCell]:
    """Yield a cell for every listed or present tensor."""
    new_names = set(evidence.renamed.values())
    for name, old in evidence.manifest.tensors.items():
        current = evidence.current.get(name)
        if name in evidence.unreadable:
            yield HeatCell(state="not read", note=evidence.unreadable[name], name=name)
        elif name in evidence.renamed:
            yield HeatCell(state="renamed", note=f"now {evidence.renamed[name]}", name=name)
        elif current is None:
            yield HeatCell(state="vanished", note=f"it was in {old.file}", name=name)
        elif current.content == old.content:
            is_there = current.file == old.file
            yield HeatCell(
                state="unchanged" if is_there else "moved",
                note="" if is_there else f"{old.file} → {current.file}",
                name=name,
            )
        else:
            forms = [f"{each.dtype} {format_shape(each.shape)}" for each in (old, current)]
            yield HeatCell(state="changed", note=" → ".join(forms) if forms[0] != forms[1] else "", name=name)
    for name in evidence.current:
        if name not in evidence.manifest.tensors and name not in new_names:
            yield HeatCell(state="new", name=name)
