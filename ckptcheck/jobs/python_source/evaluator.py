"""Reads a Python script without running it: the calls that it makes, with those arguments that are constants of the script.

Followed are assignments, arithmetic, texts and f-strings, lists, dicts, conditions, loops over known items, functions and
classes of the script and of modules that lie beside it, and defaults of dataclasses, argparse, typer and ``os.environ.get``.
Everything else is an `Unknown` with its reason. Of an unknown condition it reads both branches, and their common part
stays known. It imports and executes nothing.

To use it for a class whose keywords are settings::

    script = read_python_file(text, "train.py")
    for call in script.calls:                       # in the order in which the script makes them
        if call.ends_with("GRPOConfig"):            # trl.GRPOConfig, by the script's imports
            document.update(call.to_document())     # a Leaf for each keyword; nested dicts become sections
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.python_source.branches import Outcome
from ckptcheck.jobs.python_source.calls import END, Calls
from ckptcheck.jobs.python_source.expressions import TooLong
from ckptcheck.jobs.python_source.functions import compare
from ckptcheck.jobs.python_source.script import Find, PythonScript, parse_python
from ckptcheck.jobs.python_source.values import (
    MISSING,
    Class,
    Frame,
    Function,
    Items,
    Missing,
    Piece,
    Reference,
    Table,
    Text,
    Unknown,
    Value,
    to_items,
    to_truth,
)

MOST_MODULES = 20
"""Largest number of modules beside the script that are read."""
NOT_CALLED = "in a function that the script itself does not call"


class Evaluator(Calls):
    """Follows the statements of a script and of the modules that it imports."""

    def __init__(
        self, script: PythonScript, name: str, find: Find, environment: Mapping[str, str], results: Mapping[str, Value]
    ) -> None:
        super().__init__(script, name, environment, results)
        self.find = find
        self.modules: dict[str, Frame | None] = {}

    def run(self, tree: ast.Module, text: str) -> None:
        """Follow a script, and then the functions that it never calls."""
        frame = self.module_frame(self.name, text, "__main__")
        try:
            self.block(tree.body, frame)
            functions = [each for each in frame.slots.values() if isinstance(each, Function)]
            for function in sorted(functions, key=lambda each: not _is_command(each)):
                if id(function.node) not in self.followed:
                    self.conditions = [] if _is_command(function) else [NOT_CALLED]
                    self.call_function(function, (), {})
        except (TooLong, RecursionError):
            self.script.notes.append(f"{self.name} is not read to its end: its loops and functions run too long")

    def module_frame(self, file: str, text: str, dotted: str) -> Frame:
        """Make the frame of a module. file: its name for the report; dotted: its ``__name__``."""
        names: dict[Hashable, Value] = {
            name: Text((Piece(value, 1, file),)) for name, value in (("__file__", file), ("__name__", dotted))
        }
        return Frame(names, file=file, lines=text.splitlines())

    # --- statements ---

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> Outcome:
        """Follow statements up to one that ends the block; return how it ends."""
        for statement in body:
            self.spend()
            follow: Callable[[ast.stmt, Frame], Outcome] | None = getattr(self, f"_do_{type(statement).__name__}", None)
            if follow is not None and (outcome := follow(statement, frame)) is not None:
                return outcome
        return None

    def either(self, reason: str, bodies: Iterable[Sequence[ast.stmt]], frame: Frame) -> Outcome:
        """Follow alternative blocks: one of them runs, and ckptcheck cannot decide which."""
        self.conditions.append(reason)
        try:
            return self.heap.branch(reason, [lambda body=body: self.block(body, frame) for body in bodies])  # type: ignore[misc]
        finally:
            self.conditions.pop()

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> Outcome:
        return "raise" if self.value(node.value, frame) is END else None

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> Outcome:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return None

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> Outcome:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, frame), frame)
        return None

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> Outcome:
        """Follow ``a += value``: a list and a dict are changed in place."""
        old, value = self.value(node.target, frame), self.value(node.value, frame)
        if isinstance(old, Items) and isinstance(node.op, ast.Add):
            self.heap.write(old, "items", (*old.items, *self.items_of(value, node)))
        elif isinstance(old, Table) and isinstance(node.op, ast.BitOr):
            self.update_table(old, value)
        else:
            self.assign(node.target, self.binary(node.op, old, value, node), frame)
        return None

    def _do_If(self, node: ast.If, frame: Frame) -> Outcome:
        test = to_truth(self.value(node.test, frame))
        if test is None:
            return self.either(self.condition_of(node.test), (node.body, node.orelse), frame)
        return self.block(node.body if test else node.orelse, frame)

    def _do_Match(self, node: ast.Match, frame: Frame) -> Outcome:
        """Follow the first case that matches; if that is unknown, all that may match."""
        subject = self.value(node.subject, frame)
        possible: list[Sequence[ast.stmt]] = []
        for case in node.cases:
            matches = self.matches(case.pattern, subject, frame) if case.guard is None else None
            if matches is not False:
                possible.append(case.body)
            if matches:
                break
        else:
            possible.append([])
        if len(possible) == 1:
            return self.block(possible[0], frame)
        return self.either(self.condition_of(node.subject), possible, frame)

    def matches(self, pattern: ast.pattern, subject: Value, frame: Frame) -> bool | None:
        """Whether a value matches a pattern; None if unknown."""
        if isinstance(pattern, ast.MatchValue):
            return compare(ast.Eq(), subject, self.value(pattern.value, frame))
        if isinstance(pattern, ast.MatchAs) and pattern.name is None:
            return True
        if isinstance(pattern, ast.MatchOr):
            answers = {self.matches(each, subject, frame) for each in pattern.patterns}
            return True if True in answers else None if None in answers else False
        if isinstance(pattern, ast.MatchSequence) and isinstance(subject, Items):
            if len(subject.items) != len(pattern.patterns):
                return False
            pairs = zip(pattern.patterns, subject.items, strict=True)
            answers = {self.matches(each, item, frame) for each, item in pairs}
            return False if False in answers else None if None in answers else True
        return None

    def _do_For(self, node: ast.For | ast.AsyncFor, frame: Frame) -> Outcome:
        """Follow a loop over known items; over others, its body once."""
        items = to_items(self.value(node.iter, frame))
        if items is None:
            reason = f"set in a loop over {self.shown(node.iter)}"
            self.assign(node.target, Unknown(reason, node.lineno), frame)
            outcome = self.either(reason, (node.body, []), frame)
            return outcome if outcome in ("return", "raise") else None
        for item in items:
            self.assign(node.target, item, frame)
            outcome = self.block(node.body, frame)
            if outcome in ("return", "raise"):
                return outcome
            if outcome == "break":
                return None
        return self.block(node.orelse, frame)

    def _do_While(self, node: ast.While, frame: Frame) -> Outcome:
        """Follow the body once, because the number of its runs is unknown."""
        if to_truth(self.value(node.test, frame)) is False:
            return self.block(node.orelse, frame)
        outcome = self.either(f"set in a loop while {self.shown(node.test)}", (node.body, []), frame)
        return outcome if outcome in ("return", "raise") else None

    def _do_With(self, node: ast.With | ast.AsyncWith, frame: Frame) -> Outcome:
        for item in node.items:
            value = self.value(item.context_expr, frame)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, frame)
        return self.block(node.body, frame)

    def _do_Try(self, node: ast.Try, frame: Frame) -> Outcome:
        """Follow the body as if it raised nothing."""
        return self.block([*node.body, *node.orelse, *node.finalbody], frame)

    def _do_Return(self, node: ast.Return, frame: Frame) -> Outcome:
        frame.returned.append(self.value(node.value, frame) if node.value is not None else None)
        return "return"

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> Outcome:
        """End the branch: a job does not start after it."""
        return "raise"

    def _do_Break(self, node: ast.Break, frame: Frame) -> Outcome:
        return "break"

    def _do_Continue(self, node: ast.Continue, frame: Frame) -> Outcome:
        return "continue"

    def _do_Global(self, node: ast.Global | ast.Nonlocal, frame: Frame) -> Outcome:
        frame.outer_names.update(node.names)
        return None

    def _do_Delete(self, node: ast.Delete, frame: Frame) -> Outcome:
        for target in node.targets:
            self.assign(target, MISSING, frame)
        return None

    def _do_Import(self, node: ast.Import, frame: Frame) -> Outcome:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.heap.write(frame, alias.asname or name, Reference(name))
        return None

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> Outcome:
        base = _package_of(frame, node.level) if node.level else ""
        for alias in node.names:
            dotted = ".".join(part for part in (base, node.module, alias.name) if part)
            self.heap.write(frame, alias.asname or alias.name, self.imported(dotted))
        return None

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> Outcome:
        self.heap.write(frame, node.name, self.make_function(node, frame))
        return None

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> Outcome:
        """Define a class: its constants, its methods and the defaults of its fields."""
        bases = [self.value(base, frame) for base in node.bases]
        body = frame.inside()
        self.block(node.body, body)
        fields: dict[str, Value] = {}
        for base in reversed(bases):
            fields |= base.fields if isinstance(base, Class) else {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields[statement.target.id] = body.slots.get(statement.target.id, MISSING)
        self.heap.write(frame, node.name, Class(node.name, body, fields, bases))
        return None

    _do_AsyncFor, _do_AsyncWith, _do_Nonlocal, _do_AsyncFunctionDef = _do_For, _do_With, _do_Global, _do_FunctionDef

    # --- modules ---

    def imported(self, dotted: str) -> Value:
        """Return the definition from a module beside the script; a `Reference` for any other module."""
        if dotted == "os.environ":
            return self.environ
        module, _, name = dotted.rpartition(".")
        frame = self.module(module) if module else None
        value = frame.slots.get(name, MISSING) if frame is not None else MISSING
        is_foreign = isinstance(value, (Missing, Reference)) or (isinstance(value, Function) and name in self.results)
        return Reference(dotted) if is_foreign else value

    def module(self, dotted: str) -> Frame | None:
        """Return the frame of a module beside the script; None without one."""
        if dotted not in self.modules:
            self.modules[dotted] = None
            found = self.find(dotted) if len(self.modules) <= MOST_MODULES else None
            if found is not None:
                text, name = found
                try:
                    tree = parse_python(text, name)
                except CkptcheckError:
                    return None
                frame = self.modules[dotted] = self.module_frame(name, text, dotted)
                calls, conditions, trails = len(self.script.calls), self.conditions, self.heap.trails
                self.heap.trails = []
                self.block(tree.body, frame)
                self.heap.trails, self.conditions = trails, conditions
                del self.script.calls[calls:]
        return self.modules[dotted]


def _is_command(function: Function) -> bool:
    """Whether a decorator makes a function a command of a program, as ``@app.command()`` of typer does."""
    decorators = getattr(function.node, "decorator_list", ())
    targets = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return any(isinstance(each, ast.Attribute) and each.attr == "command" for each in targets)


def _package_of(frame: Frame, level: int) -> str:
    """Return the package that ``from .x import y`` means: ``a.b`` in the module a.b.c, for one dot."""
    owner = frame.find("__name__")
    name = owner.slots["__name__"] if owner is not None else None
    parts = name.shown.split(".") if isinstance(name, Text) else []
    up = level - frame.file.endswith("__init__.py")
    return ".".join(parts[: len(parts) - up])


def read_python_file(
    text: str,
    name: str,
    *,
    find: Find = lambda module: None,
    environment: Mapping[str, str] | None = None,
    results: Mapping[str, Value] | None = None,
) -> PythonScript:
    """Read a Python script.

    Args:
        text: The script.
        name: The file as the report names it.
        find: Finds the modules that the script imports; by default the script is read alone.
        environment: Values of environment variables that the user gives.
        results: Last part of a function's name → what it returns. Such a function is not followed, and its calls are listed.

    Raises:
        CkptcheckError: It is not Python; the message has the line.
    """
    script = PythonScript()
    Evaluator(script, name, find, environment or {}, results or {}).run(parse_python(text, name), text)
    return script
