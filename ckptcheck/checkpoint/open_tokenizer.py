"""Loads a tokenizer.json into this process, after a child process with limits has loaded it.

The library `tokenizers` is written in Rust: a hostile file may make it panic, which is no Exception, or fill the memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.sandbox import run_sandboxed
from ckptcheck.checkpoint.source import Folder, Source, read_document
from ckptcheck.checkpoint.vocabulary import LOADING_MEMORY, LOADING_SECONDS, MOST_BYTES, RARE_TEXT
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

    if (refusal := _try(raw)) is not None:
        raise CkptcheckError(f"cannot read the tokenizer {name}: {refusal}")
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and a panic is none
        raise CkptcheckError(f"cannot read the tokenizer {name}: {error}") from error


def _try(raw: bytes) -> str | None:
    """Return why a child process with limits cannot load it; None if it can, or if no child runs on this system.

    Raises EvidenceError if the child cannot be started.
    """
    try:
        answer = run_sandboxed("tokenizer", raw, seconds=LOADING_SECONDS, memory=LOADING_MEMORY, **{"try": RARE_TEXT})
    except Skip:
        return None
    for line in answer.lines:
        if "refused" in line:
            return str(line["refused"]).removeprefix("Exception: ")
        if "bound" in line:
            return "it takes more memory than any tokenizer does"
    return answer.bound
