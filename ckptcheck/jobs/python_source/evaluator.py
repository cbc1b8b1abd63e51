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
from dataclasses import replace

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.python_source.branches import Outcome, merge
from ckptcheck.jobs.python_source.expressions import OPAQUE, Expressions, TooLong
from ckptcheck.jobs.python_source.functions import LISTS, PURE, call_pure, call_text_method, compare
from ckptcheck.jobs.python_source.script import Find, PythonCall, PythonScript, parse_python
from ckptcheck.jobs.python_source.values import (
    MISSING,
    Class,
    Frame,
    Function,
    Instance,
    Items,
    Missing,
    Piece,
    Reference,
    Table,
    Text,
    Unknown,
    Unset,
    Value,
    spend_on_each,
    to_items,
    to_key,
    to_truth,
)

MOST_MODULES = 20
"""Largest number of modules beside the script that are read."""
DEEPEST = 12
"""Largest depth of calls of the script's own functions."""
NOT_CALLED = "in a function that the script itself does not call"
CLASS_PARSERS = ("HfArgumentParser", "TrlParser")
"""Parsers of transformers and TRL that make an object of each of their classes from the command line."""
RUNNERS = ("run", "Fire", "main", "cli", "launch")
"""Last parts of functions that call their argument: ``typer.run(main)``, ``fire.Fire(main)``, ``app.run(main)``."""
END = Reference("exit")
Arguments = Sequence[Value]
Keywords = Mapping[Hashable, Value]


class Evaluator(Expressions):
    """Follows the statements of a script and of the modules that it imports."""

    def __init__(
        self, script: PythonScript, name: str, find: Find, environment: Mapping[str, str], results: Mapping[str, Value]
    ) -> None:
        super().__init__(script, name)
        self.find, self.environment, self.results = find, environment, results
        # Why it is unknown whether the present statements run, innermost last.
        self.conditions: list[str] = []
        self.modules: dict[str, Frame | None] = {}
        self.depth = 0
        # The functions that the script calls, by id of their node.
        self.followed: set[int] = set()

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

    # --- calls ---

    def _of_Call(self, node: ast.Call, frame: Frame) -> Value:
        owner: Value = None
        method = ""
        if isinstance(node.func, ast.Attribute):
            owner, method = self.value(node.func.value, frame), node.func.attr
            is_plain = isinstance(owner, (Text, Items, Table))
            function = None if is_plain else self.attribute(owner, method, node.func)
        else:
            function, is_plain = self.value(node.func, frame), False
        arguments = self.values_of(node.args, frame)
        keywords: dict[Hashable, Value] = {}
        lines: dict[Hashable, int] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg], lines[keyword.arg] = value, keyword.lineno
            elif isinstance(value, (Table, Instance)):
                keywords |= value.slots
        if is_plain:
            return self.call_method(owner, method, arguments, keywords, node, frame)
        if isinstance(owner, Instance) and owner.name.endswith(("ArgumentParser", *CLASS_PARSERS)):
            parsed = self.call_parser(owner, method, arguments, keywords, node, frame)
            if parsed is not MISSING:
                return parsed
        return self.call(function, arguments, keywords, node, frame, lines)

    def call(
        self, function: Value, arguments: Arguments, keywords: Keywords, node: ast.Call, frame: Frame,
        lines: dict[Hashable, int],
    ) -> Value:  # fmt: skip
        """Call a function or class of the script, a builtin, or something that the script does not define."""
        if isinstance(function, Function):
            return self.call_function(function, arguments, keywords)
        if isinstance(function, Class):
            made = self.instantiate(function, arguments, keywords)
            if (base := function.find_imported_base()) is not None:
                # ``class Mine(GRPOConfig)`` is such a configuration, with defaults and fields of its own.
                self.record(base, arguments, made, made.slots, node, frame, lines)
            return made
        if isinstance(function, Reference):
            name = function.name
            folded = self.call_known(name, arguments, keywords, node, frame)
            if folded is not MISSING:
                return folded
        else:
            name = ast.unparse(node.func) if _is_dotted(node.func) else ""
        result = Instance(dict(keywords), name)
        last = name.rpartition(".")[2]
        if last in CLASS_PARSERS and arguments:
            result.slots["dataclass_types"] = arguments[0]
        if name:
            self.record(name, arguments, result, result.slots, node, frame, lines)
        if last in self.results:
            return self.results[last]
        for each in arguments if last in RUNNERS else ():
            if isinstance(each, Function):
                self.call_function(each, (), {})
        # The script can change an object of an imported class; the result of an imported function is unknown.
        if last[:1].isupper():
            return result
        return Unknown(f"{clip(name, 60) or self.shown(node.func)}(…) is known only when the script runs", node.lineno)

    def record(
        self, name: str, arguments: Arguments, result: Instance, keywords: dict[Hashable, Value], node: ast.Call,
        frame: Frame, lines: dict[Hashable, int],
    ) -> None:  # fmt: skip
        """Add a call of something that the script does not define."""
        condition = self.conditions[-1] if self.conditions else ""
        call = PythonCall(name, tuple(arguments), keywords, node.lineno, frame.file, condition, lines, result)
        self.script.calls.append(call)

    def call_known(self, name: str, arguments: Arguments, keywords: Keywords, node: ast.Call, frame: Frame) -> Value:
        """Return the result of a builtin or pure function; MISSING for any other function."""
        first = arguments[0] if arguments else None
        key = to_key(arguments[name == "getattr"]) if len(arguments) > (name == "getattr") else MISSING
        if name in ("exit", "sys.exit"):
            return END
        if name == "os.getenv" and isinstance(key, str):
            return self.variable(key, arguments[1] if len(arguments) > 1 else keywords.get("default"), node)
        if name in ("dict", "collections.OrderedDict"):
            return Table((dict(first.slots) if isinstance(first, Table) else {}) | dict(keywords))
        if name in ("field", "dataclasses.field") and "default_factory" in keywords:
            return self.call(keywords["default_factory"], [], {}, node, frame, {})
        if name in ("field", "dataclasses.field"):
            return keywords.get("default", MISSING)
        if name == "getattr" and isinstance(key, str):
            return self.attribute(first, key, node)
        result = call_pure(name, arguments, node.lineno, frame.file)
        return self.unknown(node) if result is MISSING and name in (*OPAQUE, *LISTS, *PURE) else result

    def call_method(
        self, owner: Value, name: str, arguments: Arguments, keywords: Keywords, node: ast.Call, frame: Frame
    ) -> Value:
        """Return the result of a method of a text, list or dict; MISSING if it is not known."""
        first = arguments[0] if arguments else None
        second = arguments[1] if len(arguments) > 1 else None
        if isinstance(owner, Text):
            return call_text_method(owner, name, arguments, node.lineno, frame.file)
        if isinstance(owner, Items):
            if name in ("append", "add"):
                self.heap.write(owner, "items", (*owner.items, first))
            elif name == "extend":
                self.heap.write(owner, "items", (*owner.items, *self.items_of(first, node)))
            else:
                if name in ("insert", "remove", "pop", "clear", "sort", "reverse"):
                    self.heap.write(owner, "items", (Unknown(f"the list is changed by {name}"),))
                return MISSING
            return None
        assert isinstance(owner, Table)
        key = to_key(first)
        if owner is self.environ and name == "get" and isinstance(key, str):
            return self.variable(key, second if second is not None else keywords.get("default"), node)
        if name in ("get", "pop", "setdefault") and key is not MISSING:
            value = owner.slots.get(key, second)
            if name != "get":
                self.heap.write(owner, key, MISSING if name == "pop" else value)
            return value
        if name == "update":
            self.update_table(owner, first)
            self.update_table(owner, Table(dict(keywords)))
            return None
        if name == "items":
            return Items.of(Items.of(pair) for pair in zip(to_items(owner) or (), owner.slots.values(), strict=True))
        return Table(dict(owner.slots)) if name == "copy" else MISSING

    def call_parser(
        self, parser: Instance, method: str, arguments: Arguments, keywords: Keywords, node: ast.Call, frame: Frame
    ) -> Value:
        """Follow a method of a parser of the command line: return the parsed options, MISSING for any other call."""
        if parser.name.endswith(CLASS_PARSERS):
            given = parser.slots.get("dataclass_types")
            classes = [given] if isinstance(given, (Reference, Class)) else to_items(given) or ()
            made = [self.call(each, [], {}, node, frame, {}) for each in spend_on_each(classes)]
            for each in made:
                if isinstance(each, Instance):
                    each.is_parsed = True
            return Items.of(made) if method.startswith("parse_") else MISSING
        if method == "add_argument":
            _add_option(parser, arguments, keywords, node.lineno)
            return None
        if method in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        options = Instance(dict(parser.slots), parser.name, is_parsed=True)
        if method == "parse_known_args":
            return Items.of([options, Items.of([])])
        return options if method == "parse_args" else MISSING

    def variable(self, name: str, default: Value, node: ast.expr) -> Value:
        """Return an environment variable: as the user or the script sets it, else the default."""
        if name in self.environment:
            return Text((Piece(self.environment[name], node.lineno, ""),))
        if name in self.environ.slots:
            return self.environ.slots[name]
        if default is None or default is MISSING:
            kind = Unset if default is None else Unknown
            return kind(f"the environment variable {clip(name, 60)} is not set in the script", node.lineno)
        self.script.defaulted.add(name)
        return default

    # --- functions and classes of the script ---

    def make_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> Function:
        """Define a function, with the defaults of its parameters."""
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = [
            *zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        defaults = {parameter.arg: self.value(given, frame) for parameter, given in pairs if given is not None}
        return Function(node, frame, defaults)

    def call_function(self, function: Function, arguments: Arguments, keywords: Keywords) -> Value:
        """Follow a function of the script; return what it returns."""
        node = function.node
        self.followed.add(id(node))
        if self.depth >= DEEPEST:
            return Unknown("its functions call each other too deeply", node.lineno)
        frame = function.frame.inside()
        names = [*node.args.posonlyargs, *node.args.args]
        parameters = [*names, *node.args.kwonlyargs]
        given = list(arguments) if function.owner is MISSING else [function.owner, *arguments]
        frame.slots = {parameter.arg: value for parameter, value in zip(names, given, strict=False)}
        for parameter in parameters:
            if parameter.arg in keywords:
                frame.slots[parameter.arg] = keywords[parameter.arg]
            elif parameter.arg not in frame.slots:
                frame.slots[parameter.arg] = self.default_of(parameter, function)
        if node.args.vararg is not None:
            frame.slots[node.args.vararg.arg] = Items.of(given[len(names) :])
        if node.args.kwarg is not None:
            known = {parameter.arg for parameter in parameters}
            frame.slots[node.args.kwarg.arg] = Table({key: item for key, item in keywords.items() if key not in known})
        self.depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, frame)
            self.block(node.body, frame)
        finally:
            self.depth -= 1
        return merge(frame.returned or [None], f"{node.name}(…) returns one of several values")

    def default_of(self, parameter: ast.arg, function: Function) -> Value:
        """Return the value of a parameter that a call leaves out: its default, or an object of its class with defaults."""
        if parameter.arg in function.defaults:
            return function.defaults[parameter.arg]
        if parameter.annotation is not None and not isinstance(parameter.annotation, ast.Constant):
            annotated = self.value(parameter.annotation, function.frame)
            if isinstance(annotated, Class):
                return self.instantiate(annotated, (), {})
        name = getattr(function.node, "name", "a function")
        return Unknown(f"{parameter.arg} of {name}(…) is known only when the script runs", parameter.lineno)

    def instantiate(self, cls: Class, arguments: Arguments, keywords: Keywords) -> Instance:
        """Make an object of a class of the script: by its fields, then by its ``__init__`` or ``__post_init__``."""
        instance = Instance(name=cls.name, cls=cls)
        for name, default in cls.fields.items():
            instance.slots[name] = Unknown(f"{name} is not set in the script") if default is MISSING else default
        instance.slots |= dict(zip(cls.fields, arguments, strict=False)) | dict(keywords)
        for name, takes in (("__init__", (arguments, keywords)), ("__post_init__", ((), {}))):
            if isinstance(starter := cls.find(name), Function):
                self.call_function(replace(starter, owner=instance), *takes)
        return instance


def _is_command(function: Function) -> bool:
    """Whether a decorator makes a function a command of a program, as ``@app.command()`` of typer does."""
    decorators = getattr(function.node, "decorator_list", ())
    targets = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return any(isinstance(each, ast.Attribute) and each.attr == "command" for each in targets)


def _is_dotted(node: ast.expr) -> bool:
    """Whether an expression is a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _package_of(frame: Frame, level: int) -> str:
    """Return the package that ``from .x import y`` means: ``a.b`` in the module a.b.c, for one dot."""
    owner = frame.find("__name__")
    name = owner.slots["__name__"] if owner is not None else None
    parts = name.shown.split(".") if isinstance(name, Text) else []
    up = level - frame.file.endswith("__init__.py")
    return ".".join(parts[: len(parts) - up])


def _add_option(parser: Instance, arguments: Arguments, keywords: Keywords, line: int) -> None:
    """Record the default of an option that ``parser.add_argument`` defines, as a slot of the parser."""
    names = [each.known or "" for each in arguments if isinstance(each, Text)]
    written = next((each for each in names if each.startswith("--")), next(iter(names), ""))
    name, action = to_key(keywords.get("dest")) or written.lstrip("-").replace("-", "_"), to_key(keywords.get("action"))
    if "default" in keywords:
        value = keywords["default"]
    elif action in ("store_true", "store_false"):
        value = action == "store_false"
    elif keywords.get("required") is True or not written.startswith("-"):
        value = Unknown(f"the option {written} has no default", line)
    else:
        value = None
    if isinstance(name, str) and name:
        parser.slots[name] = value


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
