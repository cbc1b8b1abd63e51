"""The common base of a Python script's expressions, operators and methods: texts, truth, keys and items."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.python_source.state import MISSING, Class, Frame, Function, Heap, ModuleInfo
from ckptcheck.jobs.python_source.values import Instance, Items, Piece, Table, Text, Unknown, Unset, Value, weigh

LONGEST = 200_000
"""Largest number of characters of a text."""
SEARCHED = 400
"""Lines of a text in which the place of a word is searched."""


class Computation(ABC):
    """Makes and inspects values. `Expressions` defines the expressions."""

    def __init__(self) -> None:
        self.heap = Heap()

    @abstractmethod
    def spend(self, steps: int = 1) -> None:
        """Count steps."""

    @abstractmethod
    def call(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[Hashable, Value],
        node: ast.Call,
        frame: Frame,
        lines: dict[Hashable, int],
    ) -> Value:
        """Call something."""

    @abstractmethod
    def attribute(self, owner: Value, name: str, node: ast.expr) -> Value:
        """Return an attribute of a value."""

    def unknown(self, node: ast.expr) -> Unknown:
        """Return an unknown value that names its expression."""
        return Unknown(f"{clip(self.source(node), 60)} is known only when the script runs", node.lineno)

    def source(self, node: ast.expr) -> str:
        """Write an expression; a long one without its arguments."""
        if isinstance(node, ast.Call):
            return f"{self.source(node.func)}(…)"
        size = sum(1 for _, _ in zip(ast.walk(node), range(60), strict=False))
        return ast.unparse(node) if size < 60 else "an expression"

    def condition_of(self, node: ast.expr) -> str:
        """Return why a value is unknown that a condition sets."""
        return f"set under a condition: {clip(self.source(node), 60)}"

    def make_text(self, text: str, line: int, module: ModuleInfo | None, last: int = 0) -> Text:
        """Make a text of a constant, with the line of each word. line, last: the lines of the expression."""
        file = module.file if module else ""
        if module is None or last <= line or not text.strip():
            return Text((Piece(text, line, file),))
        pieces: list[Piece] = []
        for match in re.finditer(r"\s*\S+\s*|\s+", text):
            word = match[0].strip()
            for number in range(line, min(last, line + SEARCHED) + 1):
                written = module.lines[number - 1] if number <= len(module.lines) else ""
                if word in written and not written.lstrip().startswith("#"):
                    line = number
                    break
            if pieces and pieces[-1].line == line:
                pieces[-1] = Piece(pieces[-1].text + match[0], line, file)
            else:
                pieces.append(Piece(match[0], line, file))
        return Text(tuple(pieces))

    def text_of(self, value: Value, node: ast.expr, frame: Frame) -> Text:
        """Return a value as an f-string writes it."""
        file = frame.module.file if frame.module else ""
        if isinstance(value, Text):
            return value
        if value is None or isinstance(value, (bool, int, float)):
            return Text((Piece(str(value), node.lineno, file),))
        reason = value.reason if isinstance(value, Unknown) else self.unknown(node).reason
        return Text((Piece("", node.lineno, file, reason),))

    def text_or_unknown(self, value: Value, node: ast.expr | ast.stmt) -> Text | None:
        """Return a text as it is, an unknown value as a text of one unknown part; None for any other value."""
        if isinstance(value, Unknown):
            return Text((Piece("", node.lineno, "", value.reason),))
        return value if isinstance(value, Text) else None

    def joined(self, texts: Sequence[Text], separator: str = "") -> Value:
        """Join texts."""
        pieces: list[Piece] = []
        size = 0
        for number, text in enumerate(texts):
            if number and separator and text.pieces:
                pieces.append(Piece(separator, text.pieces[0].line, text.pieces[0].file))
            pieces += text.pieces
            size += sum(len(piece.text) for piece in text.pieces) + len(text.pieces)
            if size > LONGEST:
                return Unknown(f"it is a text of more than {LONGEST:,} characters")
        return Text(tuple(piece for piece in pieces if piece.text or piece.reason))

    def truth(self, value: Value) -> bool | None:
        """Whether a value counts as true; None if unknown."""
        if isinstance(value, Unset):
            return False
        if isinstance(value, Text):
            return bool(value.shown) or (None if value.reason else False)
        if isinstance(value, Items):
            return bool(value.items)
        if isinstance(value, Table):
            return bool(value.slots)
        if value is None or isinstance(value, (bool, int, float)):
            return bool(value)
        return True if isinstance(value, (Function, Class, Instance)) else None

    def key(self, value: Value) -> Hashable:
        """Return a value as the key of a dict; MISSING if it is unknown."""
        if isinstance(value, Text):
            return MISSING if value.known is None else value.known
        return value if value is None or isinstance(value, (bool, int, float)) else MISSING

    def iterate(self, value: Value) -> Sequence[Value] | None:
        """Return the items of a value; None if they are unknown."""
        if isinstance(value, Items):
            return value.items
        if isinstance(value, Table):
            return [self.make_text(key, 0, None) if isinstance(key, str) else key for key in value.slots]
        return None

    def items_of(self, value: Value, node: ast.expr | ast.stmt) -> Sequence[Value]:
        """Return the items of a value for a list; one unknown item if they are unknown."""
        items = self.iterate(value)
        if items is not None:
            return items
        return [value if isinstance(value, Unknown) else Unknown("it is known only when the script runs", node.lineno)]

    def update_table(self, table: Table, other: Value) -> None:
        """Put the keys of another dict into a dict; an unknown dict changes no known key."""
        if isinstance(other, Table):
            self.spend(weigh(other))
            for key, value in other.slots.items():
                self.heap.write(table, key, value)
