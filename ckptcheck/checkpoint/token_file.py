"""A file of tokens that is not JSON of transformers: SentencePiece, tiktoken, or tekken; which there are, and what each holds."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ckptcheck.checkpoint.document import Defect, detect_foreign_format
from ckptcheck.checkpoint.sentencepiece_file import read_pieces
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.tekken_file import read_tekken
from ckptcheck.checkpoint.tiktoken_file import looks_like_tiktoken, read_ranks

MOST_BYTES = 1 << 27
"""Longest file that is read, in bytes. Gemma's SentencePiece model has 4 MB, Mistral's tekken.json 19 MB."""
TEKKEN = "tekken.json"
BINARY = re.compile(
    r"tokenizer\.model(\.v\d\w{0,20})?|(spiece|sentencepiece|sentencepiece\.bpe|spm|spm_char|tiktoken)\.model"
    r"|(source|target)\.spm|[^/]*\.tiktoken"
)
"""Names by which the tokenizers of transformers, mistral-common and the code of repositories ask for such a file."""
OTHER_VOCABULARIES = frozenset(("vocab.json", "vocab.txt", "dict.txt"))
"""Files that number the tokens, where a SentencePiece model beside them only splits the text (M2M100, Marian, BARTpho)."""
SENTENCEPIECE_START = b"\n"
"""The first byte of every SentencePiece model: the field of its pieces."""


@dataclass(frozen=True)
class TokenFile:
    """The tokens of one file."""

    file: str
    form: str
    """SentencePiece, tiktoken or tekken."""
    tokens: dict[int, str] = field(default_factory=dict, repr=False)
    """Id → token, as the file numbers them; some classes put further tokens before."""
    defects: tuple[Defect, ...] = ()
    numbers_tokens: bool = True
    """Whether its ids are, or are not above, those of the model."""


def has_token_file(files: Collection[str]) -> bool:
    """Whether there is one of these files among the names, or the two files of a BPE."""
    return {"vocab.json", "merges.txt"} <= set(files) or any(name == TEKKEN or BINARY.fullmatch(name) for name in files)


def read_token_files(source: Source, *, has_own_code: bool) -> tuple[TokenFile, ...]:
    """Read the files that a tokenizer is made of.

    Beside a tokenizer.json, loaders read no SentencePiece and no tiktoken file; Mistral's read tekken.json all the same.

    has_own_code: the repository brings the tokenizer's class, which may read a file of this name in a form of its own.
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
    raw = source.read(name, 0, size)
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
