"""Which file holds a tensor, as the headers say it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import cached_property
from typing import Any

FEW = 64
"""Tensors that are looked for one by one; from then on a table of all of them is quicker, which takes 100 bytes a tensor."""


class FilesOfTensors(Mapping[str, str]):
    """Tensor → file that holds it (the last one, if several do), in no particular order.

    A sound checkpoint is asked for a few tensors only, and a table of all is made when somebody asks for more.
    """

    def __init__(self, names: dict[str, dict[str, Any]]) -> None:
        """Take the files with their tensors. names: file → its tensors."""
        self._names = names
        self._asked = 0

    @cached_property
    def table(self) -> dict[str, str]:
        """All tensors with their files."""
        table: dict[str, str] = {}
        for file, tensors in self._names.items():
            table.update(dict.fromkeys(tensors, file))
        return table

    def __getitem__(self, name: str) -> str:
        if self._asked < FEW:
            self._asked += 1
            for file in reversed(self._names):
                if name in self._names[file]:
                    return file
            raise KeyError(name)
        return self.table[name]

    def __contains__(self, name: object) -> bool:
        return name in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def keys(self) -> KeysView[str]:
        """The tensors."""
        return self.table.keys()

    def values(self) -> ValuesView[str]:
        """The files."""
        return self.table.values()

    def items(self) -> ItemsView[str, str]:
        """The tensors with their files."""
        return self.table.items()
