"""Writes text to streams whose encoding lacks some of its signs, such as ASCII or Latin-1: a likeness in their place."""

from __future__ import annotations

import codecs
import io
from typing import IO

SIGNS = {
    "→": "->", "↔": "<->", "…": "...", "·": "-", "–": "-", "—": "-", "•": "*", "×": "x", "±": "+/-", "≤": "<=", "≥": ">=",
    "✓": "OK", "✗": "X", "ℹ": "i", "Δ": "delta ", "Σ": "sum ", "‖": "||", "²": "^2", "⁴": "^4", "“": '"', "”": '"',
    "‘": "'", "’": "'", **dict.fromkeys("─━═╌╸╺", "-"), **dict.fromkeys("│┃║▌", "|"), **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┡┩╇", "+"),
}  # fmt: skip
"""Sign in ckptcheck's own messages and tables → its likeness in ASCII. A sign from a checkpoint becomes an escape instead, so
that two names never become one."""

ERROR_HANDLER = "ckptcheck.likeness"
REPLACED_HANDLERS = ("strict", "surrogateescape", "backslashreplace")
"""Python's default handlers. Any other handler is the user's choice: PYTHONIOENCODING=ascii:replace."""


def write_likeness(error: UnicodeError) -> tuple[str, int]:
    r"""Return what is written in place of signs that an encoding lacks, and where to go on: a handler for `codecs`.

    >>> codecs.register_error("likeness", write_likeness)
    >>> "✗ 1 error → ▁the".encode("ascii", "likeness")
    b'X 1 error -> \\u2581the'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end


def accept_every_sign(*streams: IO[str]) -> None:
    """Have these streams write a likeness of the signs that their encoding lacks, unless the user chose another way."""
    codecs.register_error(ERROR_HANDLER, write_likeness)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors in REPLACED_HANDLERS:
            stream.reconfigure(errors=ERROR_HANDLER)


def lacks_signs(stream: IO[str]) -> bool:
    """Whether a stream's encoding lacks signs of ours, so that lines may grow on their way to it."""
    try:
        "".join(SIGNS).encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False
