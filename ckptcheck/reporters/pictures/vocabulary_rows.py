"""Draws the rows of the embedding by magnitude, with the special tokens marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.linter.pictures import Curves, Mark, Series
from ckptcheck.linter.rule import Skip
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

BUCKETS = 300
"""Groups of neighbouring rows that are drawn as one point."""
MOST_SPECIAL, MOST_MARKS = 400, 6
"""Special tokens that are drawn, and those among them that are named: the tokens that have a role."""


def draw_vocabulary_rows(ckpt: Checkpoint, title: str) -> Curves | None:
    """Return the curves of the embedding (or of the head without an embedding); None without both.

    They come from the row statistics of the value pass. Raises Skip if values are not read.
    """
    if not ckpt.vocabulary_tensors:
        return None
    values = ckpt.values_read
    if values is None:
        raise Skip("values are not read")

    import numpy as np

    name, parts = next(iter(ckpt.vocabulary_tensors.items()))
    pieces = []
    for part in parts:
        row_max = values.row_max.get(part)
        if row_max is None:
            raise Skip(f"{part} could not be read")
        dtype = ckpt.tensors[part].dtype
        pieces.append(decode(dtype, np.frombuffer(row_max, FORMATS[dtype].unsigned)))
    rows = np.concatenate(pieces).astype(np.float64)
    if not rows.size:
        return None
    together = -(-rows.size // BUCKETS)
    special = _list_special_tokens(ckpt, rows.size)
    x = sorted({*range(0, rows.size, together), *special})
    groups = np.array_split(rows, range(together, rows.size, together))
    sizes = [_measure(group) for group in groups]
    lines = ("largest of the group", "median", "smallest") if together > 1 else ("row",)
    series = [Series(label, tuple(sizes[at // together][number] for at in x)) for number, label in enumerate(lines)]
    points = tuple(float(rows[at]) if at in special else None for at in x)
    series.append(Series("special tokens", points, "bad", is_dotted=True))
    marks = tuple(Mark("special tokens", x.index(at), text) for at, text in special.items() if text)[:MOST_MARKS]
    point = f"a group of {together:,} neighbouring rows" if together > 1 else "a row"
    caption = (
        f"{name}: each point is {point}, by the largest magnitude among a row's first elements. "
        "A row in which these are all the same, such as zeros, has no point."
    )
    return Curves(title, caption, tuple(x), tuple(series), "token id", "largest magnitude of a row", "log", marks=marks)


def _measure(group: NDArray[Any]) -> tuple[float | None, float | None, float | None]:
    """Return the largest, the median and the smallest of the finite magnitudes; None without a finite one."""
    import numpy as np

    finite = np.sort(group[np.isfinite(group)])
    if not finite.size:
        return None, None, None
    low, high = finite[(finite.size - 1) // 2], finite[finite.size // 2]
    return float(finite[-1]), float(low + (high - low) / 2), float(finite[0])


def _list_special_tokens(ckpt: Checkpoint, number: int) -> dict[int, str]:
    """Return id → the text to show, for special tokens with a row: those with a role first; "" for one without a role."""
    tokenizer = ckpt.tokenizer
    if tokenizer is None:
        return {}
    try:
        ids = {token: at for token, at in tokenizer.ids.items() if at < number} if tokenizer.special_tokens else {}
    except Skip:
        return {}
    roles = {
        role.id: f"{role.name} {role.token}" for role in tokenizer.roles if role.id is not None and role.id < number
    }
    others = {ids[token]: "" for token in sorted(tokenizer.special_tokens) if token in ids}
    return dict(list((roles | {at: text for at, text in others.items() if at not in roles}).items())[:MOST_SPECIAL])
