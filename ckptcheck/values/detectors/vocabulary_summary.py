"""Lists the near-zero and the identical rows of embedding and head, with or without findings: NeMo-RL's diagnostic 3.

Where no matrix has such rows, nothing is read again for it, except one that has suspect rows, which the rules on embeddings read
again anyway. Where one has, the others are read for the same statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.linter.report import Cell, Section
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import format_ranges
from ckptcheck.values.detectors.row_stats import RowStats, compute_row_stats, may_have_untrained_rows
from ckptcheck.values.detectors.untrained_rows import SUSPECT_SHARE, find_untrained_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

COLUMNS = ("", "shape", "dtype", "near zero", "share", "identical", "share", "tied")
DETAILS = ("rows near zero", "rows identical", "mean_abs", "max_abs", "least std", "largest std")
"""Further columns, where a matrix has such rows."""
SHOWN_RANGES = 32
"""Most ranges of indices of one kind that text shows; the JSON form has all."""


def summarize_vocabulary(ckpt: Checkpoint) -> tuple[Section, ...]:
    """Return the table of embedding and head; () without these, or if no rule has read the values."""
    if ckpt.values_read is None or not ckpt.vocabulary_tensors:
        return ()
    tied = {True: "yes", False: "no", None: "unknown"}[ckpt.components.is_tied]
    found: dict[str, tuple[RowStats | None, tuple[int, int]]] = {}
    lines = []
    for name, parts in ckpt.vocabulary_tensors.items():
        try:
            found[name] = _count_rows(ckpt, name, parts)
        except (Skip, OSError) as reason:
            lines.append(f"{name}: its rows were not counted: {reason}")
    if has_some := any(near_zero or identical for _, (near_zero, identical) in found.values()):
        for name, (stats, counts) in list(found.items()):
            try:
                found[name] = (stats or compute_row_stats(ckpt, *ckpt.vocabulary_tensors[name], jobs=ckpt.jobs), counts)
            except (Skip, OSError) as reason:
                del found[name]
                lines.append(f"{name}: its rows were not counted: {reason}")
    rows: list[tuple[Cell, ...]] = []
    brief = []
    for name, (stats, counts) in found.items():
        parts = ckpt.vocabulary_tensors[name]
        first, number = ckpt.tensors[parts[0]], _count_all(ckpt, parts)
        shape = f"{number} × {' × '.join(map(str, first.shape[1:]))}"
        near_zero, identical = counts
        shares = [count / number if number else 0.0 for count in counts]
        cells: tuple[Cell, ...] = (name, shape, first.dtype, near_zero, shares[0], identical, shares[1], tied)
        texts = [
            f"{count:,} {kind}" + (f" ({share:.1%})" if count else "")
            for count, share, kind in zip(counts, shares, ("near zero", "identical"), strict=True)
        ]
        if has_some and stats is not None:
            indices = [mask.nonzero()[0].tolist() for mask in _masks(ckpt, stats)]
            low, high = stats.std_range
            cells += (*(format_ranges(each, number) for each in indices), stats.mean, stats.largest, low, high)
            texts = [
                text + (f": {format_ranges(each, SHOWN_RANGES)}" if each else "")
                for text, each in zip(texts, indices, strict=True)
            ] + [stats.describe()]
        rows.append(cells)
        brief.append(f"{name} {shape} {first.dtype}{', tied' if tied == 'yes' else ''}: {'; '.join(texts)}")
    options = ckpt.options
    title = f"Rows near zero (every |element| < {options.near_zero:g}) and identical (std < {options.identical:g})"
    section = Section(
        title,
        (*COLUMNS, *(DETAILS if has_some else ())) if rows else (),
        tuple(rows),
        tuple(lines),
        tuple(brief),
        is_idle=not lines and not has_some,
    )
    return (section,)


def _count_all(ckpt: Checkpoint, parts: tuple[str, ...]) -> int:
    """Return the number of rows of a matrix."""
    return sum(ckpt.tensors[part].shape[0] for part in parts)


def _masks(ckpt: Checkpoint, stats: RowStats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the near-zero and of the identical rows."""
    return stats.near_zero(ckpt.options.near_zero), stats.identical(ckpt.options.identical)


def _count_rows(ckpt: Checkpoint, name: str, parts: tuple[str, ...]) -> tuple[RowStats | None, tuple[int, int]]:
    """Return the numbers of near-zero and of identical rows, and the statistics of all rows, if they were read for it.

    Raises Skip for packed dtypes, OSError if reading fails.
    """
    options = ckpt.options
    has_loose_threshold = options.identical > ScanOptions().identical
    if not has_loose_threshold and not may_have_untrained_rows(ckpt, parts, options.near_zero, SUSPECT_SHARE):
        return None, (0, 0)
    known = next((matrix.stats for matrix in find_untrained_rows(ckpt) if matrix.name == name), None)
    stats = known or compute_row_stats(ckpt, *parts, jobs=ckpt.jobs)
    near_zero, identical = (int(mask.sum()) for mask in _masks(ckpt, stats))
    return stats, (near_zero, identical)
