"""Reads the tokens of a tiktoken file: on each line a token in base64, and its rank.

Format: `load_tiktoken_bpe` of tiktoken 0.14 (tiktoken/load.py), which transformers calls too.
"""

from __future__ import annotations

import base64
import binascii
import re

from ckptcheck.checkpoint.document import Defect, clip

FIRST_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} +\d{1,9}\r?\n")
MOST_DIGITS = 12
"""Digits of a rank: no vocabulary has as many tokens."""


def looks_like_tiktoken(raw: bytes) -> bool:
    """Whether a file begins like a list of tokens."""
    return FIRST_LINE.match(raw[:4096]) is not None


def read_ranks(raw: bytes) -> tuple[dict[int, str], Defect | None]:
    """Return the tokens by their ranks, and why tiktoken refuses the file; None where it does not."""
    tokens: dict[int, str] = {}
    seen: set[bytes] = set()
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line:
            continue
        parsed = _read_line(line)
        if parsed is None:
            shown = clip(line.decode("utf-8", "replace"), 40)
            return tokens, Defect(
                "torn", f"line {number:,} is no token in base64 and its rank, and tiktoken stops there: {shown!r}"
            )
        token, rank = parsed
        if rank in tokens and token not in seen:
            return tokens, Defect(
                "torn", f"line {number:,} has the rank {rank:,}, which another token has: tiktoken refuses it"
            )
        tokens[rank] = token.decode("utf-8", "replace")
        seen.add(token)
    lacking = [byte for byte in range(256) if bytes((byte,)) not in seen]
    if lacking:
        text = f"{len(lacking)} of the 256 single bytes have no token (the first is 0x{lacking[0]:02X})"
        return tokens, Defect(
            "torn", f"{text}: tiktoken stops at a text with such a byte, and transformers leaves it out"
        )
    return tokens, None


def _read_line(line: bytes) -> tuple[bytes, int] | None:
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > MOST_DIGITS:
        return None
    try:
        return base64.b64decode(parts[0]), int(parts[1])
    except binascii.Error:
        return None
