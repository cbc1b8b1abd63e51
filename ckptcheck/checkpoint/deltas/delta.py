"""Describes a delta: what one update changed in each tensor, and where the changes lie in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.source import Source

UNKNOWN = "unknown-delta"
"""Kind of a defect: the format is unknown, so the delta cannot be applied."""
MALFORMED = "malformed-delta"
"""Kind of a defect in the form of a delta."""
CHECKSUMS = ("adler32", "blake3", "xxh3-128")
"""Algorithms of the checksums that an index can name."""
BITWISE = frozenset(("xor", "overwrite"))
"""Encodings of bytes, which know no dtype."""


class Span(msgspec.Struct, frozen=True):
    """Consecutive bytes of a file."""

    file: str
    begin: int
    """Bytes from the start of the file."""
    nbytes: int


class Change(msgspec.Struct, frozen=True):
    """What a delta changes in one tensor, or in a part of it."""

    encoding: str
    """``xor`` and ``overwrite``: compressed bytes. ``indices``: positions and values. ``dense``: the whole tensor. ``verify``:
    the whole tensor as it should be at this point; it changes nothing."""
    data: Span
    """The compressed bytes, or the values."""
    positions: Span | None = None
    """Of ``indices``: the positions of the elements in the flat tensor, signed integers of 32 bits."""
    dtype: str | None = None
    """Of the values, as safetensors names it; None for an encoding of bytes."""
    shape: tuple[int, ...] | None = None
    """Of the whole tensor; None for an encoding of bytes."""


class Flush(msgspec.Struct, frozen=True):
    """One message of verl, and the checksum over its contents."""

    values: Span
    dtype: str
    """Of the values, as safetensors names it."""
    positions: Span | None
    checksum: int


@dataclass(frozen=True)
class Delta:
    """What one update changed."""

    name: str
    """The folder or the file."""
    source: Source = field(repr=False)
    writer: str = ""
    """The program that writes this format."""
    version: str | None = None
    """The version after the delta; None if the format names none."""
    base_version: str | None = None
    """The version before the delta; None if the format names none."""
    checksum_format: str | None = None
    """The algorithm of the checksums; None where there are none."""
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict, repr=False)
    """Tensor → its changes, in the order in which they are applied."""
    checksums: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Tensor → checksum of its bytes after the delta."""
    flushes: tuple[Flush, ...] = ()
    """The messages of verl that name a checksum."""
    defects: tuple[Defect, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the format is known, so that the delta can be applied."""
        return not any(defect.kind == UNKNOWN for defect in self.defects)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all changes as they are stored."""
        spans = [
            span for changes in self.changes.values() for change in changes for span in (change.data, change.positions)
        ]
        return sum(span.nbytes for span in spans if span is not None)


def adopt_defects(shard: Shard) -> list[Defect]:
    """Return the defects of a file as defects of its delta, except its alignment, which readers of deltas do not need."""
    return [
        Defect(MALFORMED, f"{clip(shard.name)}: {defect.text}", defect.key)
        for defect in shard.defects
        if defect.kind != "misaligned-data"
    ]


def normalize_version(version: object) -> str | None:
    """Return a version in one form; None for what is none. Numbers are padded with zeros or not, and may be strings.

    >>> normalize_version("000007"), normalize_version(7), normalize_version("a1-f"), normalize_version(None)
    ('7', '7', 'a1-f', None)
    """
    if isinstance(version, bool) or not isinstance(version, int | str):
        return None
    text = str(version)
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return str(int(text)) if is_number else text or None
