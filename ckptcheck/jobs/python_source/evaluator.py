"""Follows the statements of a Python script with values that may be unknown. It executes nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import current_budget
from ckptcheck.jobs.python_source.calls import Calls
from ckptcheck.jobs.python_source.script import Find, PythonCall, PythonScript, parse_python
from ckptcheck.jobs.python_source.state import MISSING, Class, Frame, Function, Missing, ModuleInfo, Outcome
from ckptcheck.jobs.python_source.values import Instance, Items, Reference, Table, Text, Unknown, Value

MOST_STEPS = 200_000
"""Statements and expressions that are followed: loops and functions can go on forever."""
MOST_MODULES = 20
"""Largest number of modules beside the script that are read."""
NOT_CALLED = "in a function that the script itself does not call"


class TooLong(Exception):
    """The script needs more than `MOST_STEPS` steps."""


class Evaluator(Calls):
    """Follows the statements of a script and of the modules that it imports."""

    def __init__(
        self, script: PythonScript, find: Find, environment: dict[str, str], results: dict[str, Value]
    ) -> None:
        super().__init__(environment, results)
        self.script, self.find, self.defaulted = script, find, script.defaulted
        self.left, self.budget, self.name = MOST_STEPS, current_budget(), "the script"
        # Why it is unknown whether the present statements run, innermost last.
        self.conditions: list[str] = []
        self.modules: dict[str, Frame | None] = {}

    def run(self, tree: ast.Module, name: str, text: str) -> None:
        """Follow a script, and then the functions that it never calls."""
        self.name = name
        frame = self.module_frame(name, text, "__main__")
        try:
            self.block(tree.body, frame)
            self.conditions = [NOT_CALLED]
            for value in list(frame.slots.values()):
                if isinstance(value, Function) and id(value.node) not in self.followed:
                    self.call_function(value, (), {})
        except (TooLong, RecursionError):
            self.script.notes.append(f"{name} is not read to its end: its loops and functions run too long")

    def module_frame(self, name: str, text: str, dotted: str) -> Frame:
        """Make the frame of a module. name: its file for the report; dotted: its ``__name__``."""
        module = ModuleInfo(name, text.splitlines())
        file, named = (self.make_text(value, 1, module) for value in (name, dotted))
        return Frame({"__file__": file, "__name__": named}, module=module)

    def record(self, call: PythonCall) -> None:
        """Add a call of something that the script does not define."""
        call.condition = self.conditions[-1] if self.conditions else ""
        self.script.calls.append(call)

    def spend(self, steps: int = 1) -> None:
        """Count steps. Raises TooLong if the script's own budget is used up, CkptcheckError if the job's is."""
        self.left -= 1
        if self.left < 0:
            raise TooLong
        # Two plain steps cost about as much as one of the budget.
        self.budget.spend(steps - self.left % 2 if steps else 0, self.name)

    # --- statements ---

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> Outcome:
        """Follow statements up to one that ends the block; return how it ends."""
        for statement in body:
            self.spend()
            follow: Callable[[ast.stmt, Frame], Outcome] = getattr(self, f"_do_{type(statement).__name__}", self.skip)
            if (outcome := follow(statement, frame)) is not None:
                return outcome
        return None

    def skip(self, node: ast.stmt, frame: Frame) -> Outcome:
        """Pass over a statement that changes no value."""

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> Outcome:
        """Follow a call."""
        value = self.value(node.value, frame)
        return "raise" if isinstance(value, Reference) and value.name == "exit" else None

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> Outcome:
        """Follow ``a = b = value``."""
        value = self.value(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return None

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> Outcome:
        """Follow ``a: int = value``."""
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
        """Follow the branch that runs; both if that is unknown."""
        test = self.truth(self.value(node.test, frame))
        if test is not None:
            return self.block(node.body if test else node.orelse, frame)
        return self.either(self.condition_of(node.test), (node.body, node.orelse), frame)

    def either(self, reason: str, bodies: Sequence[Sequence[ast.stmt]], frame: Frame) -> Outcome:
        """Follow alternative blocks: one of them runs, and ckptcheck cannot decide which."""
        self.conditions.append(reason)
        try:
            return self.heap.branch(reason, [lambda body=body: self.block(body, frame) for body in bodies])  # type: ignore[misc]
        finally:
            self.conditions.pop()

    def _do_Match(self, node: ast.Match, frame: Frame) -> Outcome:
        """Follow the first case that matches; if that is unknown, all that may match."""
        subject = self.value(node.subject, frame)
        possible: list[Sequence[ast.stmt]] = []
        for case in node.cases:
            matches = self.matches(case.pattern, subject, frame)
            if matches is True and case.guard is not None:
                matches = self.truth(self.value(case.guard, frame))
            if matches is True and not possible:
                return self.block(case.body, frame)
            if matches is not False:
                possible.append(case.body)
            if matches is True:
                break
        else:
            possible.append([])
        return self.either(self.condition_of(node.subject), possible, frame)

    def _do_For(self, node: ast.For | ast.AsyncFor, frame: Frame) -> Outcome:
        """Follow a loop over known items; over others, its body once."""
        items = self.iterate(self.value(node.iter, frame))
        if items is None:
            reason = f"set in a loop over {clip(self.source(node.iter), 60)}"
            self.assign(node.target, Unknown(reason, node.lineno), frame)
            outcome = self.either(reason, (node.body, []), frame)
            return outcome if outcome in ("return", "raise") else None
        for item in items:
            self.assign(node.target, item, frame)
            outcome = self.block(node.body, frame)
            if outcome == "break":
                return None
            if outcome in ("return", "raise"):
                return outcome
        return self.block(node.orelse, frame)

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While, frame: Frame) -> Outcome:
        """Follow the body once, because the number of its runs is unknown."""
        if self.truth(self.value(node.test, frame)) is False:
            return self.block(node.orelse, frame)
        outcome = self.either(f"set in a loop while {clip(self.source(node.test), 60)}", (node.body, []), frame)
        return outcome if outcome in ("return", "raise") else None

    def _do_With(self, node: ast.With | ast.AsyncWith, frame: Frame) -> Outcome:
        """Follow the body."""
        for item in node.items:
            value = self.value(item.context_expr, frame)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, frame)
        return self.block(node.body, frame)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try, frame: Frame) -> Outcome:
        """Follow the body as if it raised nothing."""
        return self.block([*node.body, *node.orelse, *node.finalbody], frame)

    def _do_Return(self, node: ast.Return, frame: Frame) -> Outcome:
        """Record the value that the function returns."""
        frame.returned.append(self.value(node.value, frame) if node.value is not None else None)
        return "return"

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> Outcome:
        """End the branch: a job does not start after it."""
        return "raise"

    def _do_Break(self, node: ast.Break, frame: Frame) -> Outcome:
        """End the loop."""
        return "break"

    def _do_Continue(self, node: ast.Continue, frame: Frame) -> Outcome:
        """Go on with the next item."""
        return "continue"

    def _do_Global(self, node: ast.Global | ast.Nonlocal, frame: Frame) -> Outcome:
        """Record the names that belong to an outer frame."""
        frame.global_names.update(node.names)
        return None

    _do_Nonlocal = _do_Global

    def _do_Delete(self, node: ast.Delete, frame: Frame) -> Outcome:
        """Remove names, and keys of dicts."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.heap.write(frame, target.id, MISSING)
            elif isinstance(target, ast.Subscript):
                owner, key = self.value(target.value, frame), self.key(self.value(target.slice, frame))
                if isinstance(owner, Table) and key is not MISSING:
                    self.heap.write(owner, key, MISSING)
        return None

    def _do_Import(self, node: ast.Import, frame: Frame) -> Outcome:
        """Name a module."""
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.heap.write(frame, alias.asname or name, Reference(name))
        return None

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> Outcome:
        """Set the names imported from a module: to their values if the module lies beside the script and sets them."""
        base = _package_of(frame, node.level) if node.level else ""
        for alias in node.names:
            dotted = ".".join(part for part in (base, node.module, alias.name) if part)
            self.heap.write(frame, alias.asname or alias.name, self.imported(dotted))
        return None

    def imported(self, dotted: str) -> Value:
        """Return the definition from a module beside the script; a `Reference` for any other module."""
        module, _, name = dotted.rpartition(".")
        frame = self.module(module) if module else None
        value = frame.slots.get(name, MISSING) if frame is not None else MISSING
        if isinstance(value, Function) and name not in self.results:
            return value
        return Reference(dotted) if isinstance(value, (Missing, Function, Reference)) else value

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
                calls, conditions = len(self.script.calls), self.conditions
                trails, self.heap.trails = self.heap.trails, []
                self.block(tree.body, frame)
                self.heap.trails, self.conditions = trails, conditions
                del self.script.calls[calls:]
        return self.modules[dotted]

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> Outcome:
        """Define a function. A call of its owner runs a function with a decorator ``.command``."""
        self.heap.write(frame, node.name, function := self.make_function(node, frame))
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(target, ast.Attribute) and target.attr == "command":
                owner = self.value(target.value, frame)
                if isinstance(owner, Instance):
                    commands = owner.slots.get("commands")
                    before = commands.items if isinstance(commands, Items) else ()
                    self.heap.write(owner, "commands", Items.of((*before, function)))
        return None

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> Outcome:
        """Define a class: its constants, its methods and the defaults of its fields."""
        bases = [self.value(base, frame) for base in node.bases]
        body = Frame(parent=frame, module=frame.module)
        self.block(node.body, body)
        fields: dict[str, Value] = {}
        for base in reversed(bases):
            if isinstance(base, Class):
                fields |= base.fields
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields[statement.target.id] = body.slots.get(statement.target.id, MISSING)
        self.heap.write(frame, node.name, Class(node.name, body, fields, bases))
        return None

    # --- targets and patterns ---

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Set a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            owner = frame.parent.find(target.id) if target.id in frame.global_names and frame.parent else None
            self.heap.write(owner or frame, target.id, value)
        elif isinstance(target, ast.Attribute):
            instance = self.value(target.value, frame)
            if isinstance(instance, Instance):
                self.heap.write(instance, target.attr, value)
        elif isinstance(target, ast.Subscript):
            self.assign_item(self.value(target.value, frame), self.value(target.slice, frame), value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.iterate(value)
            if items is None or len(items) != len(target.elts):
                missing = value if isinstance(value, Unknown) else Unknown("it is not known", target.lineno)
                items = [missing] * len(target.elts)
            for element, item in zip(target.elts, items, strict=True):
                self.assign(element, item, frame)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, frame)

    def assign_item(self, owner: Value, index: Value, value: Value) -> None:
        """Set ``owner[index]``; of ``os.environ``, a variable of the job."""
        key = self.key(index)
        if isinstance(owner, Reference) and owner.name == "os.environ" and isinstance(key, str):
            self.script.environment[key] = value
            self.environment_set[key] = value
        elif isinstance(owner, Table) and key is not MISSING:
            self.heap.write(owner, key, value)
        elif isinstance(owner, Items) and isinstance(key, int) and -len(owner.items) <= key < len(owner.items):
            items = list(owner.items)
            items[key] = value
            self.heap.write(owner, "items", tuple(items))

    def matches(self, pattern: ast.pattern, subject: Value, frame: Frame) -> bool | None:
        """Whether a value matches a pattern; None if unknown."""
        if isinstance(pattern, ast.MatchValue):
            return self.equal(subject, self.value(pattern.value, frame))
        if isinstance(pattern, ast.MatchSingleton):
            return None if isinstance(subject, Unknown) else subject is pattern.value
        if isinstance(pattern, ast.MatchAs):
            matches = True if pattern.pattern is None else self.matches(pattern.pattern, subject, frame)
            if pattern.name is not None and matches is not False:
                self.heap.write(frame, pattern.name, subject)
            return matches
        if isinstance(pattern, ast.MatchOr):
            return _any(self.matches(each, subject, frame) for each in pattern.patterns)
        if isinstance(pattern, ast.MatchSequence) and isinstance(subject, Items):
            if len(subject.items) != len(pattern.patterns):
                return False
            pairs = zip(pattern.patterns, subject.items, strict=True)
            some = _any(_negate(self.matches(each, item, frame)) for each, item in pairs)
            return _negate(some)
        return None


def _package_of(frame: Frame, level: int) -> str:
    """Return the package that ``from .x import y`` means: ``a.b`` in the module a.b.c, for one dot."""
    outermost: Frame | None = frame
    while outermost is not None and outermost.parent is not None:
        outermost = outermost.parent
    name = outermost.slots.get("__name__") if outermost is not None else None
    parts = name.shown.split(".") if isinstance(name, Text) else []
    is_package = frame.module is not None and frame.module.file.endswith("__init__.py")
    up = level - is_package
    return ".".join(parts[: len(parts) - up] if up else parts)


def _any(answers: Iterator[bool | None]) -> bool | None:
    """Return whether one of the answers is True; None if that depends on an unknown one."""
    unknown = False
    for answer in answers:
        if answer:
            return True
        unknown |= answer is None
    return None if unknown else False


def _negate(answer: bool | None) -> bool | None:
    return None if answer is None else not answer
