"""Computes the expressions of a Python script without running it: constants, f-strings, lists, dicts, operators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.budget import current_budget
from ckptcheck.jobs.python_source.branches import Heap, merge
from ckptcheck.jobs.python_source.functions import LISTS, PURE, apply_operator, compare, join_texts, text_of
from ckptcheck.jobs.python_source.script import PythonScript
from ckptcheck.jobs.python_source.values import (
    MISSING,
    Frame,
    Instance,
    Items,
    Piece,
    Reference,
    Table,
    Text,
    Unknown,
    Value,
    to_items,
    to_key,
    to_truth,
    weigh,
)

MOST_STEPS = 200_000
"""Statements and expressions that are followed: loops and functions can go on forever."""
SEARCHED = 400
"""Lines of a text in which the place of a word is searched."""
OPAQUE = ("hasattr", "isinstance", "open", "print", "repr", "super", "type")
"""Builtin functions that are not followed, and that run nothing."""
BUILTINS = {name for name in (*PURE, *LISTS) if "." not in name} | {
    "all", "any", "dict", "exit", "field", "getattr", "len", *OPAQUE
}  # fmt: skip


class TooLong(Exception):
    """The script needs more than `MOST_STEPS` steps."""


class Expressions:
    """Computes expressions. `Calls` defines attributes and calls, `Evaluator` the statements."""

    def __init__(self, script: PythonScript, name: str) -> None:
        """name: the script's file, in errors."""
        self.script, self.name, self.heap = script, name, Heap()
        self.left, self.budget = MOST_STEPS, current_budget()
        # ``os.environ``: the variables that the script sets.
        self.environ = Table(script.environment)

    def spend(self, steps: int = 1) -> None:
        """Count steps. Raises TooLong if the script's own budget is used up, CkptcheckError if the job's is."""
        self.left -= 1
        if self.left < 0:
            raise TooLong
        # Two plain steps cost about as much as one of the budget.
        self.budget.spend(steps - self.left % 2 if steps else 0, self.name)

    def value(self, node: ast.expr, frame: Frame) -> Value:
        """Return the value of an expression."""
        self.spend()
        compute = getattr(self, f"_of_{type(node).__name__}", None)
        value: Value = compute(node, frame) if compute is not None else MISSING
        if value is MISSING:
            return self.unknown(node)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            self.spend(weigh(value))
        return value

    def unknown(self, node: ast.expr) -> Unknown:
        """Return an unknown value that names its expression."""
        return Unknown(f"{self.shown(node)} is known only when the script runs", node.lineno)

    def shown(self, node: ast.expr) -> str:
        """Write an expression for a message; a call without its arguments."""
        called = node
        while isinstance(called, ast.Call):
            called = called.func
        is_short = sum(1 for _, _ in zip(ast.walk(called), range(60), strict=False)) < 60
        return clip((ast.unparse(called) if is_short else "an expression") + "(…)" * (called is not node), 60)

    def condition_of(self, node: ast.expr) -> str:
        """Return why a value is unknown that a condition sets."""
        return f"set under a condition: {self.shown(node)}"

    # --- texts ---

    def make_text(self, text: str, line: int, frame: Frame, last: int) -> Text:
        """Make a text of a constant, with the line of each word. line, last: the lines of the expression."""
        if last <= line or not text.strip():
            return Text((Piece(text, line, frame.file),))
        pieces: list[Piece] = []
        for match in re.finditer(r"\s*\S+\s*|\s+", text):
            word = match[0].strip()
            for number, written in enumerate(frame.lines[line - 1 : min(last, line + SEARCHED)], line):
                if word in written and not written.lstrip().startswith("#"):
                    line = number
                    break
            if pieces and pieces[-1].line == line:
                pieces[-1] = Piece(pieces[-1].text + match[0], line, frame.file)
            else:
                pieces.append(Piece(match[0], line, frame.file))
        return Text(tuple(pieces))

    def _of_Constant(self, node: ast.Constant, frame: Frame) -> Value:
        if isinstance(node.value, str):
            return self.make_text(node.value, node.lineno, frame, node.end_lineno or 0)
        return node.value if node.value is None or isinstance(node.value, (int, float)) else MISSING

    def _of_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        texts: list[Text] = []
        line, last = node.lineno, node.end_lineno or node.lineno
        for part in node.values:
            if isinstance(part, ast.Constant):
                texts.append(text := self.make_text(str(part.value), line, frame, last))
                line = text.pieces[-1].line if text.pieces else line
            elif isinstance(part, ast.FormattedValue):
                value = self.value(part.value, frame)
                # A format such as ``{x:.2f}`` or ``{x!r}`` is not followed.
                is_plain = part.format_spec is None and part.conversion in (-1, 115)
                # An inserted value has the line of the f-string, unless it has a place of its own.
                texts.append(text_of(value if is_plain else MISSING, line, frame.file, self.shown(part.value)))
        return join_texts(texts)

    def _of_Name(self, node: ast.Name, frame: Frame) -> Value:
        owner = frame.find(node.id)
        if owner is not None:
            return owner.slots[node.id]
        if node.id in BUILTINS:
            return Reference(node.id)
        return Unknown(f"{node.id} is not set in the script", node.lineno)

    # --- lists and dicts ---

    def items_of(self, value: Value, node: ast.AST) -> Sequence[Value]:
        """Return the items of a value for a list; one unknown item if they are unknown."""
        items = to_items(value)
        unknown = value if isinstance(value, Unknown) else Unknown(line=getattr(node, "lineno", 0))
        return [unknown] if items is None else items

    def values_of(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Value]:
        """Return the values of expressions, of which some may be ``*items``."""
        values: list[Value] = []
        for each in nodes:
            if isinstance(each, ast.Starred):
                values += self.items_of(self.value(each.value, frame), each)
            else:
                values.append(self.value(each, frame))
        return values

    def _of_List(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Value:
        return Items.of(self.values_of(node.elts, frame))

    _of_Tuple = _of_Set = _of_List

    def _of_Dict(self, node: ast.Dict, frame: Frame) -> Value:
        table = Table()
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node, frame)
            if key_node is None:
                self.update_table(table, value)
            elif (key := to_key(self.value(key_node, frame))) is not MISSING:
                table.slots[key] = value
        return table

    def update_table(self, table: Table, other: Value) -> None:
        """Put the keys of another dict into a dict; an unknown dict changes no known key."""
        if isinstance(other, Table):
            self.spend(weigh(other))
            for key, value in list(other.slots.items()):
                self.heap.write(table, key, value)

    def _of_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: Frame) -> Value:
        inner = frame.inside()
        found: list[Value] = []
        for known in self.comprehension(node.generators, inner):
            if not known:
                return MISSING
            found.append(self.value(node.elt, inner))
        return Items.of(found)

    _of_GeneratorExp = _of_SetComp = _of_ListComp

    def _of_DictComp(self, node: ast.DictComp, frame: Frame) -> Value:
        inner = frame.inside()
        table = Table()
        for known in self.comprehension(node.generators, inner):
            if not known:
                # Its keys are unknown; the keys beside it are known.
                return Table()
            if (key := to_key(self.value(node.key, inner))) is not MISSING:
                table.slots[key] = self.value(node.value, inner)
        return table

    def comprehension(self, generators: Sequence[ast.comprehension], frame: Frame) -> Iterator[bool]:
        """Set the names of a comprehension for each of its items, and yield True; False if they are unknown."""
        if not generators:
            yield True
            return
        items = to_items(self.value(generators[0].iter, frame))
        if items is None:
            yield False
        for item in items or ():
            self.assign(generators[0].target, item, frame)
            truths = [to_truth(self.value(test, frame)) for test in generators[0].ifs]
            if None in truths:
                yield False
                return
            if all(truths):
                yield from self.comprehension(generators[1:], frame)

    # --- operators ---

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
        sides = (left, right)
        if isinstance(operator, ast.Add):
            if isinstance(left, Items):
                return Items.of((*left.items, *self.items_of(right, node)))
            if any(isinstance(side, Text) for side in sides) and all(isinstance(s, (Text, Unknown)) for s in sides):
                return join_texts([text_of(side, node.lineno, "") for side in sides])
        value = apply_operator(operator, left, right)
        if value is not MISSING:
            return value
        reason = next((each.reason for each in sides if isinstance(each, (Unknown, Text)) and each.reason), "")
        return Unknown(reason, node.lineno) if reason else Unknown(line=node.lineno)

    def _of_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = to_truth(value)
            return MISSING if truth is None else not truth
        return value if isinstance(value, Unknown) else apply_operator(node.op, value)

    def _of_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:
        value: Value = None
        for part in node.values:
            value = self.value(part, frame)
            truth = to_truth(value)
            if truth is None:
                # It is unknown whether the next value counts: ``args.x or 8``.
                return value if isinstance(value, Unknown) else MISSING
            if truth is isinstance(node.op, ast.Or):
                break
        return value

    def _of_Compare(self, node: ast.Compare, frame: Frame) -> Value:
        left = self.value(node.left, frame)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, frame)
            answer = compare(operator, left, right)
            if not answer:
                return MISSING if answer is None else False
            left = right
        return True

    def _of_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:
        truth = to_truth(self.value(node.test, frame))
        if truth is not None:
            return self.value(node.body if truth else node.orelse, frame)
        return merge([self.value(node.body, frame), self.value(node.orelse, frame)], self.condition_of(node.test))

    def _of_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.value(node.value, frame)
        self.assign(node.target, value, frame)
        return value

    def _of_Await(self, node: ast.Await, frame: Frame) -> Value:
        return self.value(node.value, frame)

    # --- targets ---

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Set a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            owner = frame.parent.find(target.id) if target.id in frame.outer_names and frame.parent else None
            self.heap.write(owner or frame, target.id, value)
        elif isinstance(target, ast.Attribute):
            instance = self.value(target.value, frame)
            if isinstance(instance, Instance):
                self.heap.write(instance, target.attr, value)
        elif isinstance(target, ast.Subscript):
            whole, key = self.value(target.value, frame), to_key(self.value(target.slice, frame))
            if isinstance(whole, Table) and key is not MISSING:
                self.heap.write(whole, key, value)
            elif isinstance(whole, Items):
                self.heap.write(whole, "items", (Unknown("the list is changed"),))
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = to_items(value)
            if items is None or len(items) != len(target.elts):
                items = [value if isinstance(value, Unknown) else Unknown("it is not known", target.lineno)] * len(
                    target.elts
                )
            for element, item in zip(target.elts, items, strict=True):
                self.assign(element.value if isinstance(element, ast.Starred) else element, item, frame)
