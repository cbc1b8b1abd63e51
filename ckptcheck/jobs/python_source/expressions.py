"""Computes the expressions of a Python script without running it: constants, f-strings, lists, dicts, calls."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.python_source.computation import Computation
from ckptcheck.jobs.python_source.operations import apply_operator, compare
from ckptcheck.jobs.python_source.state import MISSING, Class, Frame, Function
from ckptcheck.jobs.python_source.values import (
    Instance,
    Items,
    Piece,
    Reference,
    Table,
    Text,
    Unknown,
    Value,
    merge,
    weigh,
)

BUILTINS = frozenset(
    (
        "abs", "all", "any", "bool", "dict", "enumerate", "exit", "field", "float", "getattr", "hasattr", "int", "isinstance",
        "len", "list", "max", "min", "open", "print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "super",
        "tuple", "type", "zip",
    )
)  # fmt: skip
PATH_PARTS: Mapping[str, Callable[[PurePosixPath], str]] = {
    "parent": lambda path: str(path.parent), "name": lambda path: path.name, "stem": lambda path: path.stem,
    "suffix": lambda path: path.suffix,
}  # fmt: skip
"""Attributes of a pathlib.Path, which is a text here."""


class Expressions(Computation):
    """Computes expressions. `Evaluator` defines the statements."""

    def __init__(self, environment: Mapping[str, str], results: Mapping[str, Value]) -> None:
        super().__init__()
        self.environment, self.results = environment, results
        # The variables that the script sets in os.environ.
        self.environment_set: dict[str, Value] = {}
        # Those of which it takes a default.
        self.defaulted: set[str] = set()
        self.depth = 0
        self.followed: set[int] = set()

    @abstractmethod
    def call_function(
        self, function: Function, arguments: Sequence[Value], keywords: Mapping[Hashable, Value]
    ) -> Value:
        """Follow a function of the script."""

    @abstractmethod
    def make_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> Function:
        """Define a function."""

    @abstractmethod
    def variable(self, name: str, default: Value, node: ast.expr) -> Value:
        """Return an environment variable."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Set a target."""

    @abstractmethod
    def imported(self, dotted: str) -> Value:
        """Return the value of a dotted name of a module."""

    def value(self, node: ast.expr, frame: Frame) -> Value:
        """Return the value of an expression."""
        self.spend()
        compute = getattr(self, f"_of_{type(node).__name__}", None)
        if compute is None:
            return self.unknown(node)
        value: Value = compute(node, frame)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            self.spend(weigh(value))
        return value

    # --- kinds of expressions ---

    def _of_Constant(self, node: ast.Constant, frame: Frame) -> Value:
        if isinstance(node.value, str):
            return self.make_text(node.value, node.lineno, frame.module, node.end_lineno or 0)
        if node.value is None or isinstance(node.value, (bool, int, float)):
            return node.value
        return self.unknown(node)

    def _of_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        texts: list[Text] = []
        line, last = node.lineno, node.end_lineno or node.lineno
        for part in node.values:
            if isinstance(part, ast.Constant):
                texts.append(text := self.make_text(str(part.value), line, frame.module, last))
                line = text.pieces[-1].line if text.pieces else line
            elif isinstance(part, ast.FormattedValue):
                value = self.value(part.value, frame)
                if part.format_spec is not None or part.conversion not in (-1, 115):
                    value = self.formatted(part, value, frame)
                text = self.text_of(value, part.value, frame)
                # An inserted value has the line of the f-string, unless it has a place of its own.
                own = isinstance(value, Text)
                pieces = text.pieces if own else [Piece(p.text, line, p.file, p.reason) for p in text.pieces]
                texts.append(Text(tuple(pieces)))
        return self.joined(texts)

    def formatted(self, part: ast.FormattedValue, value: Value, frame: Frame) -> Value:
        """Return a value with a format such as ``{x:.2f}`` or ``{x!r}``."""
        spec = self.value(part.format_spec, frame) if part.format_spec is not None else Text()
        plain = value.known if isinstance(value, Text) else value
        known = spec.known if isinstance(spec, Text) else None
        if known is None or not isinstance(plain, (str, int, float)) or not re.fullmatch(r"[.,<>^+_\w]{0,8}", known):
            return self.unknown(part.value)
        # A width of a billion would fill the memory.
        if any(len(digits) > 3 for digits in re.findall(r"\d+", known)):
            return self.unknown(part.value)
        try:
            written = format(repr(plain) if part.conversion == 114 else plain, known)
        except ValueError:
            return self.unknown(part.value)
        return self.make_text(written, part.lineno, frame.module)

    def _of_Name(self, node: ast.Name, frame: Frame) -> Value:
        owner = frame.find(node.id)
        if owner is not None:
            return owner.slots[node.id]
        return (
            Reference(node.id) if node.id in BUILTINS else Unknown(f"{node.id} is not set in the script", node.lineno)
        )

    def _of_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute(self.value(node.value, frame), node.attr, node)

    def attribute(self, owner: Value, name: str, node: ast.expr) -> Value:
        """Return an attribute of a value."""
        if isinstance(owner, Instance):
            if name in owner.slots:
                return owner.slots[name]
            class_of = owner.slots.get("__class__")
            found = class_of.find(name) if isinstance(class_of, Class) else MISSING
            if isinstance(found, Function):
                bound = Function(found.node, found.frame, found.defaults, owner)
                names = (
                    [each.id for each in found.node.decorator_list if isinstance(each, ast.Name)]
                    if not isinstance(found.node, ast.Lambda)
                    else []
                )
                return self.call_function(bound, (), {}) if {"property", "cached_property"} & set(names) else bound
            if found is not MISSING:
                return found
            if owner.is_parsed:
                return Unknown(f"the command line gives {clip(name, 60)}", node.lineno)
            if not isinstance(class_of, Class) and not owner.name.endswith("parse_args"):
                return Reference(f"{owner.name}.{name}")
        elif isinstance(owner, Class):
            found = owner.find(name)
            if found is not MISSING:
                return found
        elif isinstance(owner, Reference):
            return self.imported(f"{owner.name}.{name}")
        elif isinstance(owner, Text) and name in PATH_PARTS and owner.known is not None and owner.pieces:
            part = PATH_PARTS[name](PurePosixPath(owner.known))
            return Text((Piece(part, owner.pieces[0].line, owner.pieces[0].file),))
        return owner if isinstance(owner, Unknown) else self.unknown(node)

    def _of_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        owner, index = self.value(node.value, frame), self.key(self.value(node.slice, frame))
        if isinstance(node.slice, ast.Slice):
            return self.slice(owner, node.slice, frame, node)
        if isinstance(owner, Reference) and owner.name == "os.environ" and isinstance(index, str):
            return self.variable(index, MISSING, node)
        if isinstance(owner, Table) and index is not MISSING and index in owner.slots:
            return owner.slots[index]
        if isinstance(owner, Items) and isinstance(index, int) and -len(owner.items) <= index < len(owner.items):
            return owner.items[index]
        return owner if isinstance(owner, Unknown) else self.unknown(node)

    def slice(self, owner: Value, node: ast.Slice, frame: Frame, whole: ast.expr) -> Value:
        """Return ``owner[a:b]`` of a list or text."""
        given = [self.value(each, frame) if each is not None else None for each in (node.lower, node.upper, node.step)]
        bounds: list[int | None] = [each for each in given if each is None or isinstance(each, int)]
        if len(bounds) == 3 and bounds[2] != 0:
            part = slice(bounds[0], bounds[1], bounds[2])
            if isinstance(owner, Items):
                return Items.of(owner.items[part])
            if isinstance(owner, Text) and owner.known is not None and owner.pieces:
                return Text((Piece(owner.known[part], owner.pieces[0].line, owner.pieces[0].file),))
        return self.unknown(whole)

    def _of_List(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Value:
        items: list[Value] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                items += self.items_of(self.value(element.value, frame), element)
            else:
                items.append(self.value(element, frame))
        return Items.of(items)

    _of_Tuple = _of_Set = _of_List

    def _of_Dict(self, node: ast.Dict, frame: Frame) -> Value:
        table = Table()
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node, frame)
            if key_node is None:
                self.update_table(table, value)
            elif (key := self.key(self.value(key_node, frame))) is not MISSING:
                table.slots[key] = value
        return table

    def _of_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:
        # A long sum nests to the left; it is followed without recursion.
        chain: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            chain.append(left)
            left = left.left
        value = self.value(left, frame)
        for part in reversed(chain):
            value = self.binary(part.op, value, self.value(part.right, frame), part)
        return value

    def binary(self, operator: ast.operator, left: Value, right: Value, node: ast.expr | ast.stmt) -> Value:
        """Return the value of ``left operator right``."""
        sides = [left, right]
        texts = [self.text_or_unknown(side, node) for side in sides]
        if isinstance(operator, ast.Add) and any(isinstance(side, Text) for side in sides) and None not in texts:
            return self.joined([text for text in texts if text is not None])
        if isinstance(operator, ast.Add) and isinstance(left, Items):
            return Items.of((*left.items, *self.items_of(right, node)))
        if isinstance(operator, ast.BitOr) and isinstance(left, Table):
            table = Table(dict(left.slots))
            self.update_table(table, right)
            return table
        value = apply_operator(operator, left, right)
        if value is not MISSING:
            return value
        reason = next((each.reason for each in (left, right) if isinstance(each, (Unknown, Text)) and each.reason), "")
        return Unknown(reason or "it is known only when the script runs", node.lineno)

    def _of_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return self.unknown(node) if truth is None else not truth
        if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return -value if isinstance(node.op, ast.USub) else value
        return value if isinstance(value, Unknown) else self.unknown(node)

    def _of_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:
        value: Value = None
        for part in node.values:
            value = self.value(part, frame)
            truth = self.truth(value)
            if truth is None:
                # It is unknown whether the next value counts: ``args.x or 8``.
                return value if isinstance(value, Unknown) else self.unknown(node)
            if truth is isinstance(node.op, ast.Or):
                return value
        return value

    def _of_Compare(self, node: ast.Compare, frame: Frame) -> Value:
        left = self.value(node.left, frame)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, frame)
            answer = compare(operator, left, right, self.environment_set if isinstance(right, Reference) else {})
            if answer is None:
                return self.unknown(node)
            if not answer:
                return False
            left = right
        return True

    def equal(self, left: Value, right: Value) -> bool | None:
        """Whether two values are equal; None if unknown."""
        return compare(ast.Eq(), left, right, {})

    def _of_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:
        truth = self.truth(self.value(node.test, frame))
        if truth is not None:
            return self.value(node.body if truth else node.orelse, frame)
        one, other = self.value(node.body, frame), self.value(node.orelse, frame)
        return merge(one, other, self.condition_of(node.test))

    def _of_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.value(node.value, frame)
        self.assign(node.target, value, frame)
        return value

    def _of_Lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return self.make_function(node, frame)

    def _of_Await(self, node: ast.Await, frame: Frame) -> Value:
        return self.value(node.value, frame)

    def _of_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: Frame) -> Value:
        inner = Frame(parent=frame, module=frame.module)
        found: list[Value] = []
        for known in self.comprehension(node.generators, inner):
            if not known:
                return self.unknown(node)
            found.append(self.value(node.elt, inner))
        return Items.of(found)

    _of_GeneratorExp = _of_SetComp = _of_ListComp

    def _of_DictComp(self, node: ast.DictComp, frame: Frame) -> Value:
        inner = Frame(parent=frame, module=frame.module)
        table = Table()
        for known in self.comprehension(node.generators, inner):
            if not known:
                # Its keys are unknown; the keys beside it are known.
                return Table()
            key = self.key(self.value(node.key, inner))
            if key is not MISSING:
                table.slots[key] = self.value(node.value, inner)
        return table

    def comprehension(self, generators: Sequence[ast.comprehension], frame: Frame) -> Iterator[bool]:
        """Set the names of a comprehension for each of its items, and yield True; False if they are unknown."""
        if not generators:
            yield True
            return
        first = generators[0]
        items = self.iterate(self.value(first.iter, frame))
        if items is None:
            yield False
            return
        for item in items:
            self.assign(first.target, item, frame)
            truths = [self.truth(self.value(test, frame)) for test in first.ifs]
            if None in truths:
                yield False
                return
            if all(truths):
                yield from self.comprehension(generators[1:], frame)
