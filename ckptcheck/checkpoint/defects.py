"""Turns the defects of a checkpoint's files into problems, at most one per file."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping

from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.source import File
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count

WATCHED = (".json", ".model", ".spm", ".tiktoken", ".txt", ".jinja", ".bin", ".pt", ".pth", ".py")
"""Suffixes of files whose first bytes are checked for an LFS pointer or a web page."""
SMALL = 1024
"""On the Hub only files below this size (bytes) are checked: pointers and pages are small, and each read is a request."""


def is_watched(file: File, *, remote: bool) -> bool:
    """Whether a file's first bytes are checked for an LFS pointer or a web page."""
    is_numbered = ".model.v" in file.name  # Mistral's tokenizer.model.v3
    return (is_numbered or file.name.endswith(WATCHED)) and (not remote or file.size < SMALL)


def iter_problems(
    defects: Mapping[str, tuple[Defect, ...]], kinds: Collection[str], files: Container[str] | None = None
) -> Iterator[Problem]:
    """Yield one problem per file that has defects of these kinds: it describes the first defect and counts the others.

    files: only these files; None for all.
    """
    for file, all_defects in defects.items():
        if files is not None and file not in files:
            continue
        matches = [defect for defect in all_defects if defect.kind in kinds]
        if matches:
            suffix = f" ({count(len(matches) - 1, 'more such place')} in this file)" if len(matches) > 1 else ""
            places = [name for defect in matches for name in defect.names or (defect.key,) if name]
            names = tuple(dict.fromkeys(places)) if len(places) > 1 else ()
            yield Problem(matches[0].text + suffix, file=file, key=matches[0].key, names=names)
