"""Writes the names of tensors as templates and numbers: a hundred thousand names then take kilobytes, not megabytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptcheck.reporters.printable import printable

NUMBER = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.|$)")
"""A number between dots in canonical form, as `checkpoint.layout.INDEX`."""
Code = list[int]
"""The number of a template, and the numbers that stand in it."""


class NameTable:
    """The templates of all names on a page."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._codes: dict[str, Code] = {}

    def encode(self, name: str) -> Code:
        """Return the template and the numbers of a name, whose control characters become visible.

        >>> table = NameTable()
        >>> table.encode("layers.3.experts.17.up"), table.encode("layers.4.experts.0.up"), table.to_json()
        ([0, 3, 17], [0, 4, 0], [['layers.', '.experts.', '.up']])
        """
        code = self._codes.get(name)  # several pictures show the same tensors
        if code is None:
            parts = NUMBER.split(printable(name))
            template = tuple(parts[::2])
            code = [self._numbers.setdefault(template, len(self._numbers)), *map(int, parts[1::2])]
            self._codes[name] = code
        return code

    def find_template(
        self, listed: Sequence[str], numbers: Sequence[int | None], outer: Sequence[int | None]
    ) -> int | None:
        """Return the template of names that differ in one number; None where they do not, or have others.

        It encodes the first name, and compares the others as texts.

        numbers: of the names. outer: those that stand before them in all names.
        """
        if not listed or len(listed) != len(numbers) or None in numbers or not listed[0]:
            return None
        template, *found = self.encode(listed[0])
        if found != [*outer, numbers[0]]:
            return None
        begin, _, end = listed[0].rpartition(f".{numbers[0]}.")
        return template if begin and list(listed) == [f"{begin}.{number}.{end}" for number in numbers] else None

    def to_json(self) -> list[list[str]]:
        """Return the pieces of every template; numbers stand between them."""
        return [list(template) for template in self._numbers]
