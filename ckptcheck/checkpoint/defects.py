"""The defects of a checkpoint's files, told one problem a file."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping

from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.source import File
from ckptcheck.phrase import count
from ckptcheck.rule import Problem

WATCHED = (".json", ".model", ".txt", ".jinja", ".bin", ".pt", ".pth", ".py")
"""Endings of files whose first bytes are looked at for an LFS pointer or a web page."""
SMALL = 1024
"""On the Hub only files below this size are: both are small, and each look is a request."""


def is_watched(file: File, *, remote: bool) -> bool:
    """Whether a file's first bytes are looked at."""
    return file.name.endswith(WATCHED) and (not remote or file.size < SMALL)


def problems(
    defects: Mapping[str, tuple[Defect, ...]], kinds: Collection[str], files: Container[str] | None = None
) -> Iterator[Problem]:
    """Yield one problem for each file (of `files`) with defects of these kinds: the first one whole, the others counted."""
    for file, all_defects in defects.items():
        if files is not None and file not in files:
            continue
        found = [defect for defect in all_defects if defect.kind in kinds]
        if found:
            others = f" ({count(len(found) - 1, 'more such place')} in this file)" if len(found) > 1 else ""
            yield Problem(found[0].text + others, file=file, key=found[0].key)
