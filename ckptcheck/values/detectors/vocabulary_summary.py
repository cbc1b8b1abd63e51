"""Counts the near-zero and the identical rows of embedding and head, with or without findings: NeMo-RL's diagnostic 3.

Nothing is read again for it, except a matrix that has suspect rows, which the rules on embeddings read again anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.linter.report import Cell, Section
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.row_stats import compute_row_stats, may_have_untrained_rows
from ckptcheck.values.detectors.untrained_rows import SUSPECT_SHARE, find_untrained_rows

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

COLUMNS = ("", "shape", "dtype", "near zero", "share", "identical", "share", "tied")


def summarize_vocabulary(ckpt: Checkpoint) -> tuple[Section, ...]:
    """Return the table of embedding and head; () without these, or if no rule has read the values."""
    if ckpt.values_read is None or not ckpt.vocabulary_tensors:
        return ()
    tied = {True: "yes", False: "no", None: "unknown"}[ckpt.components.is_tied]
    rows: list[tuple[Cell, ...]] = []
    brief, lines = [], []
    for name, parts in ckpt.vocabulary_tensors.items():
        number = sum(ckpt.tensors[part].shape[0] for part in parts)
        first = ckpt.tensors[parts[0]]
        shape = f"{number} × {' × '.join(map(str, first.shape[1:]))}"
        try:
            near_zero, identical = _count_rows(ckpt, name, parts, number)
        except (Skip, OSError) as reason:
            lines.append(f"{name}: its rows were not counted: {reason}")
            continue
        shares = [count / number if number else 0.0 for count in (near_zero, identical)]
        rows.append((name, shape, first.dtype, near_zero, shares[0], identical, shares[1], tied))
        counts = [
            f"{count:,} {kind}" + (f" ({share:.1%})" if count else "")
            for count, share, kind in zip((near_zero, identical), shares, ("near zero", "identical"), strict=True)
        ]
        brief.append(f"{name} {shape} {first.dtype}{', tied' if tied == 'yes' else ''}: {', '.join(counts)}")
    options = ckpt.options
    title = f"Rows near zero (every |element| < {options.near_zero:g}) and identical (std < {options.identical:g})"
    section = Section(
        title,
        COLUMNS if rows else (),
        tuple(rows),
        tuple(lines),
        tuple(brief),
        is_idle=not lines and not any(row[3] or row[5] for row in rows),
    )
    return (section,)


def _count_rows(ckpt: Checkpoint, name: str, parts: tuple[str, ...], number: int) -> tuple[int, int]:
    """Return the numbers of near-zero and of identical rows. Raises Skip for packed dtypes, OSError if reading fails."""
    options, tensors = ckpt.options, ckpt.values.tensors
    if all(part in tensors and tensors[part].zero for part in parts):
        # A standard deviation of 0 is not below a threshold of 0.
        return (number if options.near_zero > 0 else 0), (number if options.identical > 0 else 0)
    has_loose_threshold = options.identical > ScanOptions.identical
    if not has_loose_threshold and not may_have_untrained_rows(ckpt, parts, options.near_zero, SUSPECT_SHARE):
        return 0, 0
    known = next((matrix.stats for matrix in find_untrained_rows(ckpt) if matrix.name == name), None)
    stats = known or compute_row_stats(ckpt, *parts, jobs=ckpt.jobs)
    return int(stats.near_zero(options.near_zero).sum()), int(stats.identical(options.identical).sum())
