"""Prints lines for a person: styled and wrapped on a terminal, as they are to a pipe or a file, so that grep works."""

from __future__ import annotations

import os
from collections.abc import Iterable
from shutil import get_terminal_size
from typing import IO, TYPE_CHECKING, cast

from ckptcheck.reporters.runner_commands import CommandFreeStream
from ckptcheck.text.encoding import lacks_signs

if TYPE_CHECKING:
    from rich.console import Console

Piece = str | tuple[str, str]
"""A part of a line: a text, or a text and its style as rich names it."""
HEIGHT = 25
"""Height of an output that is no terminal: no part of a report depends on it."""
GROWTH = 4
"""Characters by which a line of ours may grow where its signs are written in ASCII."""
FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables by which a user asks for styles where the output is no terminal."""


class LinePrinter:
    """Prints lines to a stream. rich, which takes longer to import than a small scan's rules, is loaded only for a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = CommandFreeStream(stream)
        self._console: Console | None = None
        if stream.isatty() or any(os.environ.get(name) for name in FORCING):
            from rich.console import Console

            width = width_for(stream)
            # rich asks the terminal for its size at each line, unless the size is given
            height = None if width is None else HEIGHT
            self._console = Console(file=cast("IO[str]", self._stream), highlight=False, width=width, height=height)

    def print(self, *pieces: Piece, indent: int = 0, wrap: bool = True) -> None:
        """Print the pieces as one line. On a terminal, wrapped text keeps its indent."""
        if self._console is None:
            self._stream.write(" " * indent + join_pieces(pieces) + "\n")
            return
        from rich.padding import Padding
        from rich.text import Text

        line = Text.assemble(*pieces)
        self._console.print(Padding(line, (0, 0, 0, indent), expand=False) if indent else line, soft_wrap=not wrap)


def width_for(stream: IO[str]) -> int | None:
    """Return the width to wrap at: a terminal's own (None), and none at all for a pipe or a file, so that grep works.

    Where the terminal's encoding lacks our signs, a line grows by some characters when it is written (``→`` becomes ``->``).
    """
    if not stream.isatty():
        return 10_000
    return max(get_terminal_size().columns - GROWTH, 20) if lacks_signs(stream) else None


def join_pieces(pieces: Iterable[Piece]) -> str:
    """Return the text of a line.

    >>> join_pieces([("clean", "bold green"), " · 3 rules passed"])
    'clean · 3 rules passed'
    """
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces)
