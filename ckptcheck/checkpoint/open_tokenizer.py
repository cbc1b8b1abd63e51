"""Loads a tokenizer.json into this process, after a child process with limits has loaded it.

The library `tokenizers` is written in Rust: a hostile file may make it panic, which is no Exception, or fill the memory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.source import Folder, Source, read_document
from ckptcheck.checkpoint.vocabulary import MOST_BYTES, find_refusal
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.text.file_io import read_whole_file

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"


def read_tokenizer_file(path: Path) -> bytes:
    """Return the content of a tokenizer.json that the user named, or of the one in a folder. Raises CkptcheckError."""
    try:
        if not path.is_dir():
            return read_whole_file(path, MOST_BYTES)
        return read_tokenizer(Folder(path, str(path), frozenset((FILE,))))
    except OSError as error:
        raise CkptcheckError(f"cannot read the tokenizer {path}: {error.strerror or error}") from error


def read_tokenizer(source: Source) -> bytes:
    """Return the content of a checkpoint's tokenizer.json. Raises OSError."""
    if FILE not in source.files:
        raise FileNotFoundError(f"it has no {FILE}")
    return read_document(source, FILE, MOST_BYTES)


def open_tokenizer(raw: bytes, name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json. name: of the file, for the message. Raises CkptcheckError."""
    import tokenizers

    refusal = None
    with contextlib.suppress(Skip):  # where no child runs on this system
        refusal = find_refusal(raw)
    if refusal is not None:
        raise CkptcheckError(f"cannot read the tokenizer {name}: {refusal}")
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and a panic is none
        raise CkptcheckError(f"cannot read the tokenizer {name}: {error}") from error
