"""The result of reading a Python script: its calls, the variables it sets, and the parts that could not be read."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import current_budget
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.python_source.values import MOST_ITEMS, Instance, Table, Text, Unknown, Value, to_plain
from ckptcheck.text.toml_text import LONG_NUMBER

LONGEST = 300_000
"""Largest number of characters of a script: the tree of a longer one takes more memory and time than reading a job may."""
MOST_BRACES = 20_000
"""Most opening braces of a script: Python 3.11 searches an f-string from its beginning for each expression in it."""
PARSED = 10
"""Characters of Python whose tree takes one step to make."""
DEEPEST = 10
"""Largest depth of dicts inside the keywords of a call."""


@dataclass
class PythonCall:
    """A call of something that the script does not define itself, such as a class that it imports."""

    name: str
    """The dotted name by the script's imports: ``trl.GRPOConfig`` after ``from trl import GRPOConfig``."""
    arguments: tuple[Value, ...]
    """The positional arguments."""
    keywords: dict[Hashable, Value]
    """The keyword arguments; attributes that the script sets later on the result (``config.beta = 0.1``) replace them."""
    line: int
    """The line of the call, from 1."""
    file: str
    """The script, as the report names it."""
    condition: str = ""
    """Why it is unknown whether the script makes the call; "" if it surely does."""
    lines: dict[Hashable, int] = field(default_factory=dict)
    """Keyword → the line where it is written."""
    result: Instance = field(default_factory=Instance)
    """What the call makes."""

    def ends_with(self, *names: str) -> bool:
        """Whether the last part of the dotted name is one of these."""
        return self.name.rpartition(".")[2] in names

    def to_document(self) -> Document:
        """Return the keywords as a document; an unknown value is a leaf with a reason."""
        document = Document()
        for key, value in self.keywords.items():
            if isinstance(key, str):
                self._put(document, key, value, self.lines.get(key, self.line))
        return document

    def _put(self, document: Document, path: str, value: Value, line: int) -> None:
        if len(document.leaves) >= MOST_ITEMS or path.count(".") > DEEPEST:
            return
        if (isinstance(value, Table) and value.slots) or (isinstance(value, Instance) and value.name):
            for key, item in value.slots.items():
                self._put(document, f"{path}.{key}", item, line)
            return
        plain, reason = to_plain(value)
        file = self.file
        if isinstance(value, Text) and value.pieces:
            line, file = value.pieces[0].line, value.pieces[0].file
        elif isinstance(value, Unknown) and value.line:
            line = value.line
        document.put(path, Leaf(plain, path, file, line, reason))


@dataclass
class PythonScript:
    """The actions of a Python script, as far as its own text shows them."""

    calls: list[PythonCall] = field(default_factory=list)
    """The calls of what it does not define itself, in order; those of functions that it never calls come last."""
    environment: dict[Hashable, Value] = field(default_factory=dict)
    """Environment variable → the value that the script sets: ``os.environ["X"] = "1"``."""
    defaulted: set[str] = field(default_factory=set)
    """Environment variables of which the script takes a default: ``os.environ.get("X", 8)``."""
    notes: list[str] = field(default_factory=list)
    """One sentence for each part of the script that could not be read."""


Find = Callable[[str], tuple[str, str] | None]
"""Takes the dotted name of a module; returns (its text, its name for the report); None if it is not beside the
script."""


def parse_python(text: str, name: str) -> ast.Module:
    """Parse a script. name: the file as the report names it. Raises CkptcheckError, with the line, if it is not
    Python.
    """
    if len(text) > LONGEST:
        raise CkptcheckError(f"{name} has more than {LONGEST:,} characters, which no script of a job has")
    if text.count("{") > MOST_BRACES:
        raise CkptcheckError(f"{name} has more than {MOST_BRACES:,} braces, which no script of a job has")
    if LONG_NUMBER.search(text):
        raise CkptcheckError(f"{name} has a number of more than 1,000 digits, which no script of a job has")
    current_budget().spend(len(text) // PARSED, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise CkptcheckError(f"{name}:{error.lineno or 1} is not Python: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise CkptcheckError(f"{name} is not Python that can be read: it nests too deeply") from error
