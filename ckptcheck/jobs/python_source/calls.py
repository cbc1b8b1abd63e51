"""Follows the calls of a Python script without running it: of the script's functions and classes, and of others."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.python_source.expressions import Expressions
from ckptcheck.jobs.python_source.operations import CLASS_PARSERS, apply_method, call_builtin, call_parser
from ckptcheck.jobs.python_source.script import PythonCall
from ckptcheck.jobs.python_source.state import MISSING, Class, Frame, Function, Missing, Outcome
from ckptcheck.jobs.python_source.values import (
    Instance,
    Items,
    Piece,
    Reference,
    Table,
    Text,
    Unknown,
    Unset,
    Value,
    merge,
)

ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
DEEPEST = 12
"""Largest depth of calls of the script's own functions."""


class Calls(Expressions):
    """Follows calls. The statements are those of `Evaluator`."""

    @abstractmethod
    def record(self, call: PythonCall) -> None:
        """Add a call of something that the script does not define."""

    @abstractmethod
    def block(self, body: Sequence[ast.stmt], frame: Frame) -> Outcome:
        """Follow statements."""

    def _of_Call(self, node: ast.Call, frame: Frame) -> Value:
        function = self.value(node.func, frame) if not isinstance(node.func, ast.Attribute) else None
        owner: Value = None
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, frame)
            if not isinstance(owner, (Text, Items, Table)):
                function = self.attribute(owner, node.func.attr, node.func)
        arguments: list[Value] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                arguments += self.items_of(self.value(each.value, frame), each)
            else:
                arguments.append(self.value(each, frame))
        keywords: dict[Hashable, Value] = {}
        lines: dict[Hashable, int] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg], lines[keyword.arg] = value, keyword.lineno
            elif isinstance(value, (Table, Instance)):
                keywords |= value.slots
        if isinstance(owner, Instance) and isinstance(node.func, ast.Attribute):
            parsed = call_parser(self, owner, node.func.attr, arguments, keywords, node, frame)
            if parsed is not MISSING:
                return parsed
        if isinstance(owner, (Text, Items, Table)) and isinstance(node.func, ast.Attribute):
            return apply_method(self, owner, node.func.attr, arguments, keywords, node, frame)
        return self.call(function, arguments, keywords, node, frame, lines)

    def call(
        self, function: Value, arguments: list[Value], keywords: dict[Hashable, Value], node: ast.Call, frame: Frame,
        lines: dict[Hashable, int],
    ) -> Value:  # fmt: skip
        """Call a function or class of the script, a builtin, or something that the script does not define."""
        if isinstance(function, Function):
            return self.call_function(function, arguments, keywords)
        if isinstance(function, Class):
            made = self.instantiate(function, arguments, keywords)
            if (base := function.find_imported_base()) is not None:
                # ``class Mine(GRPOConfig)`` is such a configuration, with defaults and fields of its own.
                slots = {key: value for key, value in made.slots.items() if key != "__class__"}
                file = frame.module.file if frame.module else ""
                self.record(PythonCall(base, tuple(arguments), slots, node.lineno, file, lines=lines, result=made))
            return made
        if isinstance(function, Instance):
            # ``app()`` runs the commands of a typer app.
            commands = function.slots.get("commands")
            for command in commands.items if isinstance(commands, Items) else ():
                if isinstance(command, Function):
                    self.call_function(command, (), {})
            return None
        name = (
            function.name
            if isinstance(function, Reference)
            else ast.unparse(node.func)
            if _is_dotted(node.func)
            else ""
        )
        if isinstance(function, Reference):
            if name in ENVIRONMENT and arguments and isinstance(key := self.key(arguments[0]), str):
                default = arguments[1] if len(arguments) > 1 else keywords.get("default")
                return self.variable(key, default, node)
            folded = call_builtin(self, name, arguments, keywords, node, frame)
            if folded is not MISSING:
                return folded
        file = frame.module.file if frame.module else ""
        result = Instance(keywords, name)
        last = name.rpartition(".")[2]
        if last in CLASS_PARSERS and arguments:
            result.slots["dataclass_types"] = arguments[0]
        if name:
            self.record(PythonCall(name, tuple(arguments), result.slots, node.lineno, file, lines=lines, result=result))
        if last in self.results:
            return self.results[last]
        for each in arguments:
            # ``typer.run(main)``, ``fire.Fire(main)``, ``app.run(main)``.
            if isinstance(each, Function) and last in ("run", "Fire", "main", "cli", "launch"):
                self.call_function(each, (), {})
        # The script can change an object of an imported class; the result of an imported function is unknown.
        if last[:1].isupper():
            return result
        return Unknown(f"{clip(name or self.source(node), 60)}(…) is known only when the script runs", node.lineno)

    def variable(self, name: str, default: Value, node: ast.expr) -> Value:
        """Return an environment variable: as the user or the script sets it, else the default."""
        if name in self.environment:
            return Text((Piece(self.environment[name], node.lineno, ""),))
        if name in self.environment_set:
            return self.environment_set[name]
        if default is None:
            return Unset(f"the environment variable {clip(name, 60)} is not set in the script", node.lineno)
        if isinstance(default, Missing):
            return Unknown(f"the environment variable {clip(name, 60)} is not set in the script", node.lineno)
        self.defaulted.add(name)
        return default

    def make_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> Function:
        """Define a function, with the defaults of its parameters."""
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = list(zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True))
        pairs += [
            (each, value) for each, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
        ]
        defaults: dict[str, Value] = {}
        for parameter, expression in pairs:
            # ``typer.Option(4, "--x")``: the default comes first.
            if isinstance(expression, ast.Call) and ast.unparse(expression.func).endswith(("Option", "Argument")):
                first = next(iter(expression.args), None)
                first = first or next((each.value for each in expression.keywords if each.arg == "default"), None)
                defaults[parameter.arg] = self.value(first, frame) if first is not None else MISSING
            else:
                defaults[parameter.arg] = self.value(expression, frame)
        return Function(node, frame, defaults)

    def call_function(
        self, function: Function, arguments: Sequence[Value], keywords: Mapping[Hashable, Value]
    ) -> Value:
        """Follow a function of the script; return what it returns."""
        node = function.node
        self.followed.add(id(node))
        if self.depth >= DEEPEST:
            return Unknown("its functions call each other too deeply", node.lineno)
        frame = Frame(parent=function.frame, module=function.frame.module)
        names = [*node.args.posonlyargs, *node.args.args]
        given = list(arguments) if function.owner is MISSING else [function.owner, *arguments]
        for parameter, value in zip(names, given, strict=False):
            frame.slots[parameter.arg] = value
        if node.args.vararg is not None:
            frame.slots[node.args.vararg.arg] = Items.of(given[len(names) :])
        known = {parameter.arg for parameter in (*names, *node.args.kwonlyargs)}
        if node.args.kwarg is not None:
            frame.slots[node.args.kwarg.arg] = Table({key: item for key, item in keywords.items() if key not in known})
        for parameter in (*names, *node.args.kwonlyargs):
            if parameter.arg in keywords:
                frame.slots[parameter.arg] = keywords[parameter.arg]
            elif parameter.arg not in frame.slots:
                frame.slots[parameter.arg] = self.default_of(parameter, function)
        self.depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, frame)
            self.block(node.body, frame)
        finally:
            self.depth -= 1
        if not frame.returned:
            return None
        result = frame.returned[0]
        for other in frame.returned[1:]:
            result = merge(result, other, f"{node.name}(…) returns one of several values")
        return result

    def default_of(self, parameter: ast.arg, function: Function) -> Value:
        """Return the value of a parameter that a call leaves out: its default, or an object of its class with defaults."""
        value = function.defaults.get(parameter.arg, MISSING)
        if not isinstance(value, Missing):
            return value
        if parameter.annotation is not None and not isinstance(parameter.annotation, ast.Constant):
            annotated = self.value(parameter.annotation, function.frame)
            if isinstance(annotated, Class):
                return self.instantiate(annotated, (), {})
        name = getattr(function.node, "name", "a function")
        return Unknown(f"{parameter.arg} of {name}(…) is known only when the script runs", parameter.lineno)

    def instantiate(self, cls: Class, arguments: Sequence[Value], keywords: Mapping[Hashable, Value]) -> Instance:
        """Make an object of a class of the script: by its fields, then by its ``__init__`` or ``__post_init__``."""
        instance = Instance({"__class__": cls}, cls.name)
        for name, default in cls.fields.items():
            instance.slots[name] = Unknown(f"{name} is not set in the script") if default is MISSING else default
        for name, value in zip(cls.fields, arguments, strict=False):
            instance.slots[name] = value
        for key, value in keywords.items():
            instance.slots[key] = value
        starter = cls.find("__init__")
        if isinstance(starter, Function):
            self.call_function(Function(starter.node, starter.frame, starter.defaults, instance), arguments, keywords)
        finisher = cls.find("__post_init__")
        if isinstance(finisher, Function):
            self.call_function(Function(finisher.node, finisher.frame, finisher.defaults, instance), (), {})
        return instance


def _is_dotted(node: ast.expr) -> bool:
    """Whether an expression is a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
