"""Finds pieces of a file that are copies of other pieces and do not end where rows end.

A model may hold the same heads, experts or layers twice: such copies begin and end with rows. A write to the wrong
place, a block that was uploaded twice, or a broken copy of a file copies blocks of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ckptcheck.linter.rule import Skip
from ckptcheck.values.file_marks import MARK_BYTES, MARK_STEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard

MIN_MARKS = 3
"""Fewer neighbouring marks that repeat others at one distance are no finding."""
MIN_WORDS = 1024
"""Different words of eight bytes that the first block of a piece has to have, out of 8,192: masks and tables repeat
themselves."""
MAX_CANDIDATES = 32
"""Runs of marks of a file that are examined, the longest first: examining one reads it again."""
SLACK = 16
"""Bytes beyond a copy that may be equal by chance."""


class RepeatedPiece(msgspec.Struct, frozen=True):
    """A piece of a file whose bytes occur twice in it."""

    shard: str
    original: int
    """First byte of the earlier one, from the start of the file."""
    copy: int
    """First byte of the later one. Nothing shows which of the two is wrong."""
    nbytes: int
    tensors: tuple[str, str]
    """The tensors in which they begin."""


class Twin(NamedTuple):
    """Two pieces of a file that hold the same bytes: where each begins, and their length."""

    original: int
    copy: int
    nbytes: int

    def holds(self, first: int, second: int) -> bool:
        """Whether two places of the file lie in the two pieces, at the same distance."""
        return second - first == self.copy - self.original and self.original <= first < self.original + self.nbytes


def find_repeated_pieces(ckpt: Checkpoint) -> list[RepeatedPiece]:
    """Return the pieces that occur twice in a file and end in the middle of a row.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    found = []
    for name, pieces in ckpt.values.marks.items():
        if name not in ckpt.values.complete_shards:
            continue
        shard, seen = ckpt.shards[name], list[Twin]()
        for first, second, number in _find_runs_of_marks(pieces):
            # The marks of one piece may form several runs, because a mark is constant or occurs a third time.
            if any(twin.holds(first * MARK_STEP, second * MARK_STEP) for twin in seen):
                continue
            twin = _measure_twin(ckpt, shard, first, second, number)
            if twin is not None:
                seen.append(twin)
                if not _is_meant(shard, twin):
                    found.append(_describe_piece(shard, twin))
    return found


def _find_runs_of_marks(pieces: list[tuple[int, bytes]]) -> list[tuple[int, int, int]]:
    """Return the first block, the block that repeats it, and how many blocks in a row do so; the longest runs first."""
    import numpy as np

    blocks = np.concatenate([first + np.arange(len(marks) // MARK_BYTES) for first, marks in pieces])
    words = np.frombuffer(b"".join(marks for _, marks in pieces), "<u8")
    # A word of one number throughout, such as zeros, says nothing.
    telling = words != (words & 0xFFFF) * 0x0001000100010001
    blocks, words = blocks[telling], words[telling]
    # Sorting the words alone takes a tenth of the time, and hardly any file has two that are equal.
    in_order = np.sort(words)
    if np.count_nonzero(in_order[1:] == in_order[:-1]) < MIN_MARKS:
        return []
    order = np.lexsort((blocks, words))
    blocks, words = blocks[order], words[order]
    equal = np.flatnonzero(words[1:] == words[:-1])
    firsts, distances = blocks[equal], blocks[equal + 1] - blocks[equal]
    order = np.lexsort((firsts, distances))
    firsts, distances = firsts[order], distances[order]
    breaks = np.flatnonzero((np.diff(firsts) != 1) | (np.diff(distances) != 0)) + 1
    begins = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((begins, [len(firsts)])))
    runs = [
        (int(firsts[begin]), int(firsts[begin] + distances[begin]), int(length))
        for begin, length in zip(begins, lengths, strict=True)
        if length >= MIN_MARKS
    ]
    return sorted(runs, key=lambda run: -run[2])[:MAX_CANDIDATES]


def _measure_twin(ckpt: Checkpoint, shard: Shard, first: int, second: int, number: int) -> Twin | None:
    """Return the two pieces that these marks lie in; None where their bytes differ or are a pattern."""
    import numpy as np

    original, copy = first * MARK_STEP, second * MARK_STEP
    nbytes = (number - 1) * MARK_STEP
    for at in range(0, nbytes, MARK_STEP):
        ours, theirs = (_read(ckpt, shard, begin + at, MARK_STEP) for begin in (original, copy))
        if not np.array_equal(ours, theirs) or (at == 0 and np.unique(ours.view("<u8")).size < MIN_WORDS):
            return None
    more = MARK_STEP
    while more == MARK_STEP:
        before = min(MARK_STEP, original - shard.data_start)
        ours, theirs = (_read(ckpt, shard, begin - before, before) for begin in (original, copy))
        more = _count_equal(ours[::-1], theirs[::-1])
        original, copy, nbytes = original - more, copy - more, nbytes + more
    more = MARK_STEP
    while more == MARK_STEP:
        after = min(MARK_STEP, shard.size - copy - nbytes)
        more = _count_equal(*(_read(ckpt, shard, begin + nbytes, after) for begin in (original, copy)))
        nbytes += more
    return Twin(original, copy, nbytes)


def _is_meant(shard: Shard, twin: Twin) -> bool:
    """Whether the pieces overlap, as in a pattern, or all their ends are ends of rows."""
    order = _list_in_order(shard)
    return twin.copy - twin.original < twin.nbytes or all(
        _is_row_edge(shard, order, place, side) for place in (twin.original, twin.copy) for side in (0, twin.nbytes)
    )


def _describe_piece(shard: Shard, twin: Twin) -> RepeatedPiece:
    order = _list_in_order(shard)
    tensors = _find_tensor(shard, order, twin.original), _find_tensor(shard, order, twin.copy)
    return RepeatedPiece(shard.name, twin.original, twin.copy, twin.nbytes, tensors)


def _list_in_order(shard: Shard) -> list[str]:
    """Return the tensors that hold bytes, in the order of the data."""
    names = [name for name, tensor in shard.tensors.items() if tensor.nbytes]
    return sorted(names, key=lambda name: shard.tensors[name].data_offsets)


def _read(ckpt: Checkpoint, shard: Shard, begin: int, nbytes: int) -> NDArray[np.uint8]:
    import numpy as np

    raw = ckpt.source.read(shard.name, begin, nbytes)
    if len(raw) < nbytes:
        raise Skip(f"{shard.name} shrank while it was being read")
    return np.frombuffer(raw, np.uint8)


def _count_equal(ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> int:
    """Return how many leading bytes are equal."""
    import numpy as np

    different = np.flatnonzero(ours != theirs)
    return int(different[0]) if different.size else len(ours)


def _find_tensor(shard: Shard, order: list[str], place: int) -> str:
    """Return the tensor that holds a byte of the file."""
    begins = [shard.tensors[name].data_offsets[0] for name in order]
    return order[max(0, bisect_right(begins, place - shard.data_start) - 1)]


def _is_row_edge(shard: Shard, order: list[str], place: int, side: int) -> bool:
    """Whether a row of a tensor begins or ends at one end of a piece, apart from bytes that are equal by chance.

    place: the first byte of the piece. side: 0 for its start, its length for its end.
    """
    at = place + side
    tensor = shard.tensors[_find_tensor(shard, order, at - (1 if side else 0))]
    begin = shard.data_start + tensor.data_offsets[0]
    row = max(1, tensor.nbytes * tensor.shape[-1] // prod(tensor.shape)) if len(tensor.shape) > 1 else tensor.nbytes
    # chance makes a piece longer at both ends, never shorter
    return (at - begin if side else begin - at) % row <= SLACK
