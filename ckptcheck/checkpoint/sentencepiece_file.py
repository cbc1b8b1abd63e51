"""Finds and reads SentencePiece models, which are messages of protocol buffers, without the library.

Format: sentencepiece_model.proto (`ModelProto.pieces` is field 1, a piece's text its field 1). Files of tiktoken and tekken are
left to their own readers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ckptcheck.checkpoint.document import Defect, detect_foreign_format
from ckptcheck.checkpoint.source import Source, read_document
from ckptcheck.text.formatting import count

MOST_BYTES = 1 << 27
"""Longest file that is read, in bytes. Gemma's model has 4 MB."""
NAMES = re.compile(
    r"tokenizer\.model(\.v\d\w{0,20})?|(spiece|sentencepiece|sentencepiece\.bpe|spm|spm_char)\.model|(source|target)\.spm"
)
"""Names under which transformers, mistral-common and the code of repositories look for such a file."""
OTHER_NAMES = re.compile(r"tekken\.json|tiktoken\.model|[^/]*\.tiktoken")
"""Names of files with tokens of tekken and tiktoken."""
OTHER_VOCABULARIES = frozenset(("vocab.json", "vocab.txt", "dict.txt"))
"""Files that number the tokens, so that a SentencePiece model beside them only splits the text (M2M100, Marian, BARTpho)."""
START = b"\n"
"""The first byte of every model: the field of its pieces."""
TIKTOKEN_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} +\d{1,9}\r?\n")
"""A line of tiktoken's list of tokens, which Llama 3 calls tokenizer.model too."""
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
"""Kinds of fields; the other two are groups, which no such model has."""
LONGEST_VARINT = 10
"""Most bytes of a protobuf varint: 64 bits, seven in each byte."""


@dataclass(frozen=True)
class PieceFile:
    """The pieces of one SentencePiece model."""

    file: str
    pieces: list[str] = field(default_factory=list, repr=False)
    """In the order of their ids in the file; some tokenizer classes insert tokens before these."""
    defects: tuple[Defect, ...] = ()
    numbers_tokens: bool = True
    """Whether its ids are the model's ids, or at least not above them."""


def has_token_file(files: Collection[str]) -> bool:
    """Whether the names include a file with tokens beside transformers' own JSON, or the two files of a BPE."""
    return {"vocab.json", "merges.txt"} <= set(files) or any(
        NAMES.fullmatch(name) or OTHER_NAMES.fullmatch(name) for name in files
    )


def read_piece_files(source: Source, *, has_own_code: bool) -> tuple[PieceFile, ...]:
    """Read the SentencePiece models that a tokenizer is made of; beside a tokenizer.json, loaders ignore them.

    has_own_code: the repository brings its own tokenizer class, which may read a file of this name in another form.
    """
    if "tokenizer.json" in source.files:
        return ()
    names = sorted(name for name, file in source.files.items() if file.outside_link is None and NAMES.fullmatch(name))
    found = (_read_file(source, name, has_own_code=has_own_code) for name in names)
    return tuple(each for each in found if each is not None)


def _read_file(source: Source, name: str, *, has_own_code: bool) -> PieceFile | None:
    size = source.files[name].size
    if size > MOST_BYTES:
        return PieceFile(name, defects=(Defect("too-long", f"it has {size:,} bytes; no tokenizer is that long"),))
    raw = read_document(source, name, size, is_text=False)  # SentencePiece writes zero bytes
    if (foreign := detect_foreign_format(raw[:64])) is not None:
        return PieceFile(name, defects=(foreign,))
    if TIKTOKEN_LINE.match(raw[:4096]):
        return None
    if raw.startswith(START):
        pieces, defect = read_pieces(raw)
        numbers = not OTHER_VOCABULARIES & source.files.keys()
        return PieceFile(name, pieces, (defect,) if defect is not None else (), numbers)
    if raw and has_own_code:
        return None
    text = "it is neither a SentencePiece model nor a list of tokens for tiktoken" if raw else "it is empty"
    return PieceFile(name, defects=(Defect("no-tokens", text),))


class _Broken(Exception):
    """The bytes are no message."""


def read_pieces(raw: bytes) -> tuple[list[str], Defect | None]:
    """Return the pieces in the order of their ids, and the reason why protocol buffers refuses the file, or None."""
    pieces: list[str] = []
    position = 0
    try:
        while position < len(raw):
            number, start, end = _next_field(raw, position, len(raw))
            position = end
            if number == 1 and start >= 0:
                pieces.append(_read_piece(raw, start, end))
    except _Broken:
        where = f"after {count(len(pieces), 'piece')}" if pieces else "at its beginning"
        text = f"it is damaged: from byte {position:,} on, {where}, it is not a SentencePiece model"
        return pieces, Defect("torn", text)
    return pieces, None if pieces else Defect("no-tokens", "it is a SentencePiece model without a piece")


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
