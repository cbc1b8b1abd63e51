"""Finds and reads token files outside transformers' own JSON: SentencePiece, tiktoken and tekken.

A tiktoken file has a token in base64 and its rank on each line: `load_tiktoken_bpe` of tiktoken 0.14 (tiktoken/load.py), which
transformers calls too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ckptcheck.checkpoint.document import Defect, clip, detect_foreign_format
from ckptcheck.checkpoint.sentencepiece_file import read_pieces
from ckptcheck.checkpoint.source import Source, read_document
from ckptcheck.checkpoint.tekken_file import read_tekken

MOST_BYTES = 1 << 27
"""Longest file that is read, in bytes. Gemma's SentencePiece model has 4 MB, Mistral's tekken.json 19 MB."""
TEKKEN = "tekken.json"
BINARY = re.compile(
    r"tokenizer\.model(\.v\d\w{0,20})?|(spiece|sentencepiece|sentencepiece\.bpe|spm|spm_char|tiktoken)\.model"
    r"|(source|target)\.spm|[^/]*\.tiktoken"
)
"""Names under which transformers, mistral-common and the code of repositories look for such a file."""
OTHER_VOCABULARIES = frozenset(("vocab.json", "vocab.txt", "dict.txt"))
"""Files that number the tokens, so that a SentencePiece model beside them only splits the text (M2M100, Marian, BARTpho)."""
SENTENCEPIECE_START = b"\n"
"""The first byte of every SentencePiece model: the field of its pieces."""
TIKTOKEN_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} +\d{1,9}\r?\n")
MOST_DIGITS = 12
"""Most digits of a rank: no vocabulary has as many tokens."""


@dataclass(frozen=True)
class TokenFile:
    """The tokens of one file."""

    file: str
    form: str
    """SentencePiece, tiktoken or tekken."""
    tokens: dict[int, str] = field(default_factory=dict, repr=False)
    """Id → token, as the file numbers them; some tokenizer classes insert tokens before these."""
    defects: tuple[Defect, ...] = ()
    numbers_tokens: bool = True
    """Whether its ids are the model's ids, or at least not above them."""


def has_token_file(files: Collection[str]) -> bool:
    """Whether the names include such a file, or the two files of a BPE."""
    return {"vocab.json", "merges.txt"} <= set(files) or any(name == TEKKEN or BINARY.fullmatch(name) for name in files)


def read_token_files(source: Source, *, has_own_code: bool) -> tuple[TokenFile, ...]:
    """Read the files that a tokenizer is made of.

    Beside a tokenizer.json, loaders ignore SentencePiece and tiktoken files, but Mistral's loaders still read tekken.json.

    has_own_code: the repository brings its own tokenizer class, which may read a file of this name in another form.
    """
    names = sorted(name for name, file in source.files.items() if file.outside_link is None and _is_read(name, source))
    found = (_read(source, name, has_own_code=has_own_code) for name in names)
    return tuple(each for each in found if each is not None)


def _is_read(name: str, source: Source) -> bool:
    return name == TEKKEN or ("tokenizer.json" not in source.files and BINARY.fullmatch(name) is not None)


def _read(source: Source, name: str, *, has_own_code: bool) -> TokenFile | None:
    size = source.files[name].size
    if size > MOST_BYTES:
        return TokenFile(
            name, "tokenizer", defects=(Defect("too-long", f"it has {size:,} bytes; no tokenizer is that long"),)
        )
    raw = read_document(source, name, size, is_text=False)  # SentencePiece writes zero bytes
    if (foreign := detect_foreign_format(raw[:64])) is not None:
        return TokenFile(name, "tokenizer", defects=(foreign,))
    numbers = not OTHER_VOCABULARIES & source.files.keys()
    if name == TEKKEN:
        tokens, defect = read_tekken(raw)
        form = "tekken"
    elif not raw:
        tokens, defect, form = {}, Defect("no-tokens", "it is empty"), "tokenizer"
    elif raw.startswith(SENTENCEPIECE_START) and not looks_like_tiktoken(raw):
        pieces, defect = read_pieces(raw)
        tokens, form = dict(enumerate(pieces)), "SentencePiece"
    elif looks_like_tiktoken(raw):
        tokens, defect = read_ranks(raw)
        form = "tiktoken"
    elif has_own_code:
        return None
    else:
        text = "it is neither a SentencePiece model nor a list of tokens for tiktoken"
        tokens, defect, form = {}, Defect("no-tokens", text), "tokenizer"
    return TokenFile(name, form, tokens, (defect,) if defect is not None else (), numbers)


def looks_like_tiktoken(raw: bytes) -> bool:
    """Whether a file begins like tiktoken's list of tokens."""
    return TIKTOKEN_LINE.match(raw[:4096]) is not None


def read_ranks(raw: bytes) -> tuple[dict[int, str], Defect | None]:
    """Return rank → token, and the reason why tiktoken refuses the file, or None."""
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
