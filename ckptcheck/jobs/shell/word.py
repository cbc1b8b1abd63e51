"""A word of a launch script after expansion, with the place where it is written and what of it is not known."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "\ufffc"
"""Stands for each part of a text that is not known, in `Word.marked`."""


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion."""

    text: str
    """The word; parts that are not known are empty."""
    line: int
    """The line where it is written, from 1; for a word of an array, the line of the array; 0 where there is none."""
    reason: str = ""
    """Why a part of the word is not known; "" where all of it is known."""
    file: str = ""
    """The script that writes it, as the report names it."""
    variable: str = ""
    """The variable that nothing sets, so that the word is not known; "" where that is not the reason."""
    is_list: bool = False
    """Whether the word stands for several words, or for none: a list that is not known."""
    marked: str = ""
    """The text with a `MARK` for each part that is not known; "" where that is the text itself."""

    @property
    def with_marks(self) -> str:
        """The text, with a `MARK` for each part that is not known."""
        return self.marked or (self.text + MARK if self.reason and not self.text else self.text)

    @property
    def place(self) -> str:
        """The place as messages write it: ``run.sh:12``."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Command(list[Word]):
    """The words of a command, and how its line ends."""

    begin: int = 0
    """The line where it begins, from 1; 0 where that is not known."""
    end: int = 0
    """The line where it ends, from 1; 0 where that is not known."""
    last_line: str = ""
    """The text of that line."""
    is_dead: bool = False
    """Whether it stands under a condition that is false."""
    document: str = ""
    """The text of its here-document; "" where it has none."""
    document_line: int = 0
    """The line where the here-document begins."""
