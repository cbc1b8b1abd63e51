"""Diagnoses tensors that are too large for memory: in slabs. A cause is named where every slab shows the same one.

A cause that moves or changes whole rows (heads, groups, halves, shards of ranks) does the same in every column, so each slab of
columns shows it by itself, and all slabs together cover the tensor. A cause that moves columns shows in slabs of rows. A cause
whose text counts columns of a slab of columns, or rows of a slab of rows, describes the slab and not the tensor; it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.diagnosis import DiagnosisInput, Verdict, diagnose
from ckptcheck.compare.matching.tensor_files import TensorFiles
from ckptcheck.text.formatting import count, format_bytes

SLAB_BYTES = 1 << 25
"""Bytes of one slab of a tensor."""
READ_BYTES = 1 << 23
"""Bytes of whole rows that are read at a time."""
MAX_SLABS = 64
"""Slabs of a tensor at most: its file is read once for each."""
MAX_TENSORS = 8
"""Tensors of one shape that are examined, spread over kinds and layers."""
ANYWHERE = frozenset(
    ("zero", "nan", "constant", "stale", "layer", "expert", "sign", "byte-order", "round-trip", "scaled")
)
"""Causes that are the same in every part of a tensor."""
ACCEPTED = (
    ANYWHERE
    | {"qkv-interleave", "gate-up-swapped", "gate-up-interleaved", "rope-permuted", "rows-shifted", "partial-write"}
    | {"tp-concatenated", "tp-order", "tp-duplicated"},
    frozenset(("tp-order", "tp-duplicated", "partial-write")),
)
"""Causes that a slab of columns can show, and causes that only a slab of rows can show."""
SLAB_WORDS = (("columns ", "elements ", "in one tensor"), ("rows ", "elements ", "in one tensor"))
"""Words of a text that locate something within the slab, for slabs of columns and slabs of rows."""

Slab = tuple[int, int, int]
"""Dimension (0: rows, 1: columns), number of the slab, number of slabs."""


def diagnose_large_tensors(
    shapes: dict[str, TensorLayout], build_input: Callable[[Slab, Iterable[str] | None], DiagnosisInput]
) -> list[Verdict]:
    """Return verdicts about large tensors.

    Args:
        shapes: name → tensor.
        build_input: returns the input of one slab, of all tensors or only of the given names.

    """
    names_by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, layout in shapes.items():
        names_by_shape.setdefault(layout.shape, []).append(name)
    verdicts: list[Verdict] = []
    for names in names_by_shape.values():
        layout = shapes[names[0]]
        number = -(-layout.nbytes // SLAB_BYTES)
        confirmed: list[Verdict] = []
        if number <= MAX_SLABS and len(layout.shape) == 2 and min(layout.shape) >= number:
            for axis in (1, 0):
                rest = [name for name in names if all(name not in verdict.tensors for verdict in confirmed)]
                confirmed += _diagnose_slabs(rest, axis, number, build_input) if rest else []
        verdicts += confirmed
        known = {name for verdict in confirmed for name in verdict.tensors}
        if unknown := tuple(name for name in names if name not in known):
            verdicts.append(_too_large(unknown, layout))
    return verdicts


def read_slab(files: TensorFiles, layout: TensorLayout, slab: Slab) -> NDArray[Any]:
    """Read one slab of a tensor, a few rows at a time. Raises UnreadableFile."""
    axis, index, slabs = slab
    axis = axis if axis == 0 else len(layout.shape) - 1
    begin, end = (layout.shape[axis] * at // slabs for at in (index, index + 1))
    if axis == 0:
        return files.read_tensor(layout.cut(0, begin, end))
    verdicts = np.empty((*layout.shape[:-1], end - begin), f"<u{layout.itemsize}")
    step = max(1, READ_BYTES * layout.shape[0] // max(layout.nbytes, 1))
    for first in range(0, layout.shape[0], step):
        last = min(first + step, layout.shape[0])
        verdicts[first:last] = files.read_tensor(layout.cut(0, first, last))[..., begin:end]
    return verdicts


def _diagnose_slabs(
    names: list[str], axis: int, slabs: int, build_input: Callable[[Slab, Iterable[str] | None], DiagnosisInput]
) -> list[Verdict]:
    """Diagnose one slab, and keep the verdicts that every other slab confirms."""

    def fits(verdict: Verdict) -> bool:
        text = _cause_text(verdict)
        return set(verdict.causes) <= ACCEPTED[1 - axis] and not any(word in text for word in SLAB_WORDS[1 - axis])

    first_result = diagnose(build_input((axis, slabs // 2, slabs), None), names, most=MAX_TENSORS)
    confirmed = [verdict for verdict in first_result if fits(verdict)]
    for slab in range(slabs):
        if not confirmed:
            break
        remaining = [name for verdict in confirmed for name in verdict.tensors]
        moved = any({"layer", "expert"} & set(verdict.causes) for verdict in confirmed)
        slab_input = build_input((axis, slab, slabs), None if moved else remaining)
        slab_verdicts = {_identify(verdict) for verdict in diagnose(slab_input, remaining, most=len(remaining))}
        confirmed = [verdict for verdict in confirmed if _identify(verdict) in slab_verdicts]
    return [
        structs.replace(verdict, evidence=f"{verdict.evidence} (seen in each of {slabs} slabs)")
        for verdict in confirmed
    ]


def _identify(verdict: Verdict) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return what has to be equal in every slab: causes, text and tensors."""
    return verdict.causes, _cause_text(verdict), verdict.tensors


def _cause_text(verdict: Verdict) -> str:
    """Return the sentence of a verdict without the names and numbers of its tensors."""
    return verdict.sentence.partition(": ")[2]


def _too_large(names: tuple[str, ...], layout: TensorLayout) -> Verdict:
    text = f"too large ({format_bytes(layout.nbytes)}) to be diagnosed whole; no cause is the same in all of its slabs"
    return Verdict(("unknown",), f"{count(len(names), 'tensor')}: the cause is unknown", names, "unknown", text)
