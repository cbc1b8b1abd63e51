"""Reads the pieces of a SentencePiece model, which is a message of protocol buffers, without the library.

Format: sentencepiece_model.proto (`ModelProto.pieces` is field 1, a piece's text its field 1).
"""

from __future__ import annotations

from ckptcheck.checkpoint.document import Defect
from ckptcheck.text.formatting import count

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
"""Kinds of fields; the other two are groups, which no such model has."""
LONGEST_VARINT = 10
"""Most bytes of a protobuf varint: 64 bits, seven in each byte."""
TEXT_FIELD, SCORE_FIELD, TYPE_FIELD = 0x0A, b"\x15", b"\x18"
"""First bytes of a piece's fields; a piece within its model begins like a text."""


class _Broken(Exception):
    """The bytes are no message."""


def read_pieces(raw: bytes) -> tuple[list[str], Defect | None]:
    """Return the pieces in the order of their ids, and the reason why protocol buffers refuses the file, or None."""
    pieces: list[str] = []
    position = 0
    try:
        while position < len(raw):
            end = _end_of_usual_piece(raw, position)
            if end:
                pieces.append(raw[position + 4 : position + 4 + raw[position + 3]].decode("utf-8", "replace"))
                position = end
                continue
            number, start, end = _next_field(raw, position, len(raw))
            position = end
            if number == 1 and start >= 0:
                pieces.append(_read_piece(raw, start, end))
    except _Broken:
        where = f"after {count(len(pieces), 'piece')}" if pieces else "at its beginning"
        text = f"it is torn: at byte {position:,}, {where}, it is no SentencePiece model any more"
        return pieces, Defect("torn", text)
    return pieces, None if pieces else Defect("no-tokens", "it is a SentencePiece model without a piece")


def _end_of_usual_piece(raw: bytes, position: int) -> int:
    """Return where a piece of the usual form ends: a short text, its score, perhaps its type; 0 for any other field.

    A fast path: `_next_field` reads such pieces too, ten times slower, and Gemma has 262,144 of them.
    """
    head = raw[position : position + 4]
    if len(head) < 4 or head[0] != TEXT_FIELD or head[2] != TEXT_FIELD or head[1] > 0x7F:
        return 0
    score, end = position + 4 + head[3], position + 2 + head[1]
    rest = raw[score:end]
    is_usual = rest[:1] == SCORE_FIELD and (
        len(rest) == 5 or (len(rest) == 7 and rest[5:6] == TYPE_FIELD and rest[6] < 0x80)
    )
    return end if is_usual and end <= len(raw) else 0


def _read_piece(raw: bytes, position: int, end: int) -> str:
    text = ""
    while position < end:
        number, start, position = _next_field(raw, position, end)
        if number == 1 and start >= 0:
            text = raw[start:position].decode("utf-8", "replace")
    return text


def _next_field(raw: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return the number of the field at a position, where its bytes begin (-1 for a number), and where it ends."""
    tag, position = _varint(raw, position, end)
    number, kind = tag >> 3, tag & 7
    start = -1
    if kind == VARINT:
        _, position = _varint(raw, position, end)
    elif kind == BYTES:
        length, start = _varint(raw, position, end)
        position = start + length
    elif kind in (EIGHT, FOUR):
        position += 8 if kind == EIGHT else 4
    else:
        raise _Broken
    if number == 0 or position > end:
        raise _Broken
    return number, start, position


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(end, position + LONGEST_VARINT)):
        byte = raw[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise _Broken
