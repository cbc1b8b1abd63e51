"""A word of a launch script after expansion, with its place and its unknown parts."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "\ufffc"
"""Stands for each unknown part of a text in `Word.marked`."""


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion."""

    text: str
    """The word; unknown parts are empty."""
    line: int
    """The line where it is written, from 1; for a word of an array, the line of the array; 0 without one."""
    reason: str = ""
    """Why a part of the word is unknown; "" if all of it is known."""
    file: str = ""
    """The script that writes it, as the report names it."""
    variable: str = ""
    """The unset variable that makes the word unknown; "" if that is not the reason."""
    is_list: bool = False
    """Whether the word stands for several words, or for none: an unknown list."""
    marked: str = ""
    """The text with a `MARK` for each unknown part; "" if that is the text itself."""

    @property
    def with_marks(self) -> str:
        """The text, with a `MARK` for each unknown part."""
        return self.marked or (self.text + MARK if self.reason and not self.text else self.text)

    @property
    def place(self) -> str:
        """The place as messages write it: ``run.sh:12``."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Command(list[Word]):
    """The words of a command, and the place and state of its line."""

    begin: int = 0
    """The line where it begins, from 1; 0 if unknown."""
    end: int = 0
    """The line where it ends, from 1; 0 if unknown."""
    last_line: str = ""
    """The text of that line."""
    is_dead: bool = False
    """Whether it stands under a condition that is false."""
    runs: bool | None = None
    """Whether it runs for certain; None if that is not known."""
    in_background: bool = False
    """Whether the next command starts while it runs (``&``)."""
    gpus: str | None = None
    """The GPUs that it sees, CUDA_VISIBLE_DEVICES; "" for all, None if unknown."""
    sender: str = ""
    """The program that gives it to another shell; "" for a command of the script itself."""
    document: str = ""
    """The text of its here-document; "" without one."""
    document_line: int = 0
    """The line where the here-document begins."""
