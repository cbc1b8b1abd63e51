"""Follows attributes and calls of a Python script without running it: of its own functions and classes, and of others."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.python_source.branches import Outcome, merge
from ckptcheck.jobs.python_source.expressions import OPAQUE, Expressions
from ckptcheck.jobs.python_source.functions import LISTS, PURE, call_pure, call_text_method
from ckptcheck.jobs.python_source.script import PythonCall, PythonScript
from ckptcheck.jobs.python_source.values import (
    MISSING,
    Class,
    Frame,
    Function,
    Instance,
    Items,
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
)

DEEPEST = 12
"""Largest depth of calls of the script's own functions."""
CLASS_PARSERS = ("HfArgumentParser", "TrlParser")
"""Parsers of transformers and TRL that make an object of each of their classes from the command line."""
RUNNERS = ("run", "Fire", "main", "cli", "launch")
"""Last parts of functions that call their argument: ``typer.run(main)``, ``fire.Fire(main)``, ``app.run(main)``."""
END = Reference("exit")
Arguments = Sequence[Value]
Keywords = Mapping[Hashable, Value]
PATH_PARTS: Mapping[str, Callable[[PurePosixPath], object]] = {
    "parent": lambda path: path.parent, "name": lambda path: path.name, "stem": lambda path: path.stem,
    "suffix": lambda path: path.suffix,
}  # fmt: skip
"""Attributes of a pathlib.Path, which is a text here."""


class Calls(Expressions, ABC):
    """Follows calls. `Evaluator` defines the statements and the modules."""

    def __init__(
        self, script: PythonScript, name: str, environment: Mapping[str, str], results: Mapping[str, Value]
    ) -> None:
        super().__init__(script, name)
        self.environment, self.results = environment, results
        # Why it is unknown whether the present statements run, innermost last.
        self.conditions: list[str] = []
        self.depth = 0
        # The functions that the script calls, by id of their node.
        self.followed: set[int] = set()

    @abstractmethod
    def block(self, body: Sequence[ast.stmt], frame: Frame) -> Outcome:
        """Follow statements."""

    @abstractmethod
    def imported(self, dotted: str) -> Value:
        """Return the value of a dotted name of a module."""

    # --- attributes and items ---

    def _of_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute(self.value(node.value, frame), node.attr, node)

    def attribute(self, owner: Value, name: str, node: ast.expr) -> Value:
        """Return an attribute of a value."""
        if isinstance(owner, Instance):
            found = owner.cls.find(name) if owner.cls and name not in owner.slots else owner.slots.get(name, MISSING)
            if isinstance(found, Function) and name not in owner.slots:
                bound = Function(found.node, found.frame, found.defaults, owner)
                decorators = getattr(found.node, "decorator_list", ())
                is_property = any(isinstance(each, ast.Name) and each.id.endswith("property") for each in decorators)
                return self.call_function(bound, (), {}) if is_property else bound
            if found is not MISSING:
                return found
            if owner.is_parsed:
                return Unknown(f"the command line gives {clip(name, 60)}", node.lineno)
            if owner.cls is None:
                return Reference(f"{owner.name}.{name}")
        elif isinstance(owner, Class) and (found := owner.find(name)) is not MISSING:
            return found
        elif isinstance(owner, Reference):
            return self.imported(f"{owner.name}.{name}")
        elif isinstance(owner, Text) and name in PATH_PARTS and owner.known is not None:
            return owner.replaced(str(PATH_PARTS[name](PurePosixPath(owner.known))))
        return owner if isinstance(owner, Unknown) else self.unknown(node)

    def _of_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        owner = self.value(node.value, frame)
        index = MISSING if isinstance(node.slice, ast.Slice) else to_key(self.value(node.slice, frame))
        if owner is self.environ and isinstance(index, str):
            return self.variable(index, MISSING, node)
        if isinstance(owner, Table) and index is not MISSING and index in owner.slots:
            return owner.slots[index]
        if isinstance(owner, Items) and isinstance(index, int) and -len(owner.items) <= index < len(owner.items):
            return owner.items[index]
        return owner if isinstance(owner, Unknown) else MISSING

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
        if owner is self.environ and name in ("get", "setdefault") and isinstance(key, str):
            value = self.variable(key, second if second is not None else keywords.get("default"), node)
            if name == "setdefault":
                self.heap.write(owner, key, value)
            return value
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

    def _of_Lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return self.make_function(node, frame)


def _is_dotted(node: ast.expr) -> bool:
    """Whether an expression is a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


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
