"""Computes operators, methods and builtin functions on the values of a Python script without running it."""

from __future__ import annotations

import ast
import json
import operator
import posixpath
import re
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence

from ckptcheck.jobs.budget import current_budget
from ckptcheck.jobs.python_source.computation import Computation
from ckptcheck.jobs.python_source.state import MISSING, Class, Frame
from ckptcheck.jobs.python_source.values import (
    Instance,
    Items,
    Piece,
    Reference,
    Slots,
    Table,
    Text,
    Unknown,
    Unset,
    Value,
    spend_on_each,
    to_plain,
)

LARGEST = 10**15
"""Largest absolute value of a number that is computed."""
MOST_ITEMS = 2000
"""Largest number of items of a list that is computed."""
LONGEST = 100_000
"""Largest number of characters of a text that is repeated."""
ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
ORDER: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
TEXT_METHODS = frozenset(
    "lower upper strip lstrip rstrip replace removeprefix removesuffix startswith endswith title capitalize isdigit".split()  # noqa: SIM905
)
PURE_TEXT: Mapping[str, Callable[..., str]] = {
    "os.path.join": posixpath.join, "os.path.dirname": posixpath.dirname, "os.path.basename": posixpath.basename,
    "os.path.abspath": lambda path: path, "os.path.realpath": lambda path: path, "os.path.normpath": posixpath.normpath,
    "pathlib.Path": posixpath.join, "textwrap.dedent": lambda text: text,
}  # fmt: skip
TAKES_NUMBERS: Mapping[str, Callable[..., object]] = {"min": min, "max": max, "sum": sum, "round": round, "abs": abs}
CLASS_PARSERS = ("HfArgumentParser", "TrlParser")
"""Parsers of transformers and TRL that make an object of each of their classes from the command line."""


def apply_operator(kind: ast.operator, left: Value, right: Value) -> Value:
    """Return the value of an arithmetic operator; MISSING if unknown."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        try:
            if isinstance(kind, ast.Pow) and abs(left) <= 4096 and 0 <= right <= 40:
                value: float = left**right
            elif type(kind) in ARITHMETIC:
                value = ARITHMETIC[type(kind)](left, right)
            else:
                return MISSING
        except (ArithmeticError, ValueError):
            return MISSING
        return value if abs(value) <= LARGEST else MISSING
    if isinstance(kind, ast.Mult) and isinstance(right, int):
        if isinstance(left, Items) and len(left.items) * right <= MOST_ITEMS:
            return Items.of(left.items * right)
        if isinstance(left, Text) and len(left.shown) * right <= LONGEST and len(left.pieces) * right <= MOST_ITEMS:
            return Text(left.pieces * right)
    if isinstance(kind, ast.Div) and isinstance(left, Text) and isinstance(right, Text) and left.pieces:
        # Of a pathlib.Path, which is a text here.
        slash = Piece("/", left.pieces[-1].line, left.pieces[-1].file)
        if len(left.pieces) + len(right.pieces) > MOST_ITEMS or len(left.shown) + len(right.shown) > LONGEST:
            return MISSING
        return Text((*left.pieces, slash, *right.pieces))
    return MISSING


def compare(kind: ast.cmpop, left: Value, right: Value, environment: Mapping[str, Value]) -> bool | None:
    """Whether a comparison holds; None if unknown. environment: the variables that the script sets."""
    if isinstance(kind, (ast.Is, ast.IsNot)) and (left is None or right is None):
        other = left if right is None else right
        if isinstance(other, Unknown) and not isinstance(other, Unset):
            return None
        is_none = other is None or isinstance(other, Unset)
        return is_none if isinstance(kind, ast.Is) else not is_none
    if isinstance(kind, (ast.In, ast.NotIn)):
        contained = _contains(right, left, environment)
        return contained if contained is None or isinstance(kind, ast.In) else not contained
    (one, why), (other_plain, why_other) = to_plain(left), to_plain(right)
    if isinstance(left, Unset) and isinstance(right, Text) and isinstance(kind, (ast.Eq, ast.NotEq)) and not why_other:
        return isinstance(kind, ast.NotEq)
    if why or why_other:
        return None
    if isinstance(kind, (ast.Is, ast.IsNot)):
        kind = ast.Eq() if isinstance(kind, ast.Is) else ast.NotEq()
    try:
        return bool(ORDER[type(kind)](one, other_plain)) if type(kind) in ORDER else None
    except TypeError:
        return None


def _contains(whole: Value, item: Value, environment: Mapping[str, Value]) -> bool | None:
    """Whether a list, dict or text contains a value; None if unknown."""
    plain, reason = to_plain(item)
    if isinstance(item, Unset):
        plain, reason = None, ""
    if reason:
        return None
    if isinstance(whole, Reference) and whole.name == "os.environ":
        return plain in environment
    if isinstance(whole, Text):
        known = whole.known
        if isinstance(plain, str) and plain in whole.shown:
            return True
        return None if known is None or not isinstance(plain, str) else False
    if isinstance(whole, Table):
        return plain in whole.slots if isinstance(plain, (str, int, float, type(None))) else None
    if isinstance(whole, Items):
        items = [to_plain(each) for each in spend_on_each(whole.items)]
        if any(not why and each == plain for each, why in items):
            return True
        return None if any(why for _, why in items) else False
    return None


def call_builtin(
    reader: Computation, name: str, arguments: Sequence[Value], keywords: Mapping[Hashable, Value], node: ast.Call, frame: Frame
) -> Value:  # fmt: skip
    """Return the result of a builtin or pure function; MISSING for any other function."""
    plain = [to_plain(each) for each in arguments]
    reason = next((why for _, why in plain if why), "")
    first = arguments[0] if arguments else None
    if name in ("print", "isinstance", "hasattr", "super", "type", "open"):
        return reader.unknown(node)
    if name in ("exit", "sys.exit"):
        return Reference("exit")
    if name in ("dict", "collections.OrderedDict"):
        table = Table(dict(first.slots) if isinstance(first, Table) else {})
        table.slots |= keywords
        return table
    if name in ("list", "tuple", "set", "sorted", "reversed", "enumerate", "zip", "range"):
        return _list_of(reader, name, arguments, node)
    if name in ("field", "dataclasses.field"):
        if "default_factory" in keywords:
            factory = keywords["default_factory"]
            return reader.call(factory, [], {}, node, frame, {})
        return keywords.get("default", MISSING if "default" not in keywords else None)
    if name in ("re.search", "re.match", "re.fullmatch") and len(plain) > 1 and not reason:
        return None if _misses(name.removeprefix("re."), plain[0][0], plain[1][0]) else reader.unknown(node)
    if name == "getattr" and len(arguments) > 1 and isinstance(key := reader.key(arguments[1]), str):
        return reader.attribute(first, key, node)
    if name == "len" and isinstance(first, (Items, Table)):
        return len(first.items) if isinstance(first, Items) else len(first.slots)
    if name in ("any", "all") and isinstance(first, Items):
        truths = [reader.truth(item) for item in spend_on_each(first.items)]
        decisive = name == "any"
        return decisive if decisive in truths else reader.unknown(node) if None in truths else not decisive
    if name in (
        "int",
        "float",
        "str",
        "bool",
        *TAKES_NUMBERS,
        *PURE_TEXT,
        "shlex.quote",
        "shlex.join",
        "shlex.split",
        "json.dumps",
    ):
        if name == "str" and isinstance(first, Text):
            return first
        if reason:
            return _with_reason(name, arguments, reason, node)
        return _fold(reader, name, [value for value, _ in plain], node, frame)
    return MISSING


def _misses(method: str, pattern: object, text: object) -> bool:
    """Whether a regular expression does not match.

    False too for one that could take long: with more than two repetitions, with a repeated group, or with back references.
    """
    if not (isinstance(pattern, str) and isinstance(text, str)) or max(len(text), len(pattern)) > 200:
        return False
    repetitions = len(re.findall(r"[*+{?]", pattern))
    if repetitions > 2 or re.search(r"\)[*+{]|\\[1-9]|\(\?P=", pattern):
        return False
    current_budget().spend(20 + len(text) ** (repetitions + 1) // 1000, "a Python script's regular expression")
    try:
        return getattr(re, method)(pattern, text) is None
    except (re.error, OverflowError, RecursionError):
        return False


def _with_reason(name: str, arguments: Sequence[Value], reason: str, node: ast.Call) -> Value:
    """Return the value of a pure function of an unknown value: a text keeps its known parts."""
    if name in ("pathlib.Path", "shlex.quote", "os.path.abspath") and isinstance(arguments[0], Text):
        return arguments[0]
    if name == "os.path.join":
        pieces: list[Piece] = []
        for each in arguments:
            pieces += each.pieces if isinstance(each, Text) else (Piece("", node.lineno, "", reason),)
            pieces.append(Piece("/", node.lineno, ""))
        return Text(tuple(pieces[:-1]))
    return Unknown(reason, node.lineno)


def _fold(reader: Computation, name: str, plain: Sequence[object], node: ast.Call, frame: Frame) -> Value:
    """Compute a pure function of known values."""
    try:
        if name == "int":
            value: object = int(*plain[:1]) if plain and len(str(plain[0])) < 20 else reader.unknown(node)  # type: ignore[call-overload]
        elif name == "float":
            value = float(*plain[:1])  # type: ignore[arg-type]
        elif name == "bool":
            value = bool(*plain[:1])
        elif name == "str":
            value = str(*plain[:1])
        elif name in TAKES_NUMBERS:
            value = TAKES_NUMBERS[name](*plain)
        elif name == "shlex.quote":
            value = shlex.quote(str(plain[0]))
        elif name == "shlex.join":
            value = shlex.join(map(str, plain[0]))  # type: ignore[call-overload]
        elif name == "shlex.split":
            return Items.of([reader.make_text(word, node.lineno, frame.module) for word in shlex.split(str(plain[0]))])
        elif name == "json.dumps":
            value = json.dumps(plain[0])
        else:
            value = PURE_TEXT[name](*map(str, plain))
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError):
        return reader.unknown(node)
    if isinstance(value, str):
        if len(value) > LONGEST:
            return reader.unknown(node)
        return reader.make_text(value, node.lineno, frame.module)
    return value if isinstance(value, (int, float, Unknown)) or value is None else reader.unknown(node)


def _list_of(reader: Computation, name: str, arguments: Sequence[Value], node: ast.Call) -> Value:
    """Return the list that a builtin makes."""
    if name == "range":
        if not all(isinstance(each, int) for each in arguments) or not arguments:
            return reader.unknown(node)
        try:
            numbers = range(*arguments)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return reader.unknown(node)
        return Items.of(list(numbers)) if len(numbers) <= MOST_ITEMS else reader.unknown(node)
    lists = [reader.iterate(each) for each in arguments]
    if any(items is None for items in lists):
        return reader.unknown(node)
    first: Sequence[Value] = (lists[0] or ()) if lists else ()
    if name == "enumerate":
        return Items.of([Items.of(pair) for pair in enumerate(first)])
    if name == "zip":
        return Items.of([Items.of(group) for group in zip(*[items or () for items in lists], strict=False)])
    if name == "reversed":
        return Items.of(list(reversed(first)))
    if name == "sorted":
        known = [(to_plain(item), item) for item in spend_on_each(first)]
        try:
            return Items.of([item for _, item in sorted(known, key=lambda pair: pair[0])])
        except TypeError:
            return reader.unknown(node)
    return Items.of(first)


def call_parser(
    reader: Computation, parser: Instance, method: str, arguments: Sequence[Value], keywords: Mapping[Hashable, Value],
    node: ast.Call, frame: Frame,
) -> Value:  # fmt: skip
    """Follow a method of a parser of the command line: return the parsed options, MISSING for any other call."""
    line = node.lineno
    if parser.name.rpartition(".")[2] in CLASS_PARSERS and method.startswith("parse_"):
        given = parser.slots.get("dataclass_types")
        classes = [given] if isinstance(given, (Reference, Class)) else reader.iterate(given) or ()
        return Items.of([_make_parsed(reader, each, node, frame) for each in spend_on_each(classes)])
    if parser.name.rpartition(".")[2] != "ArgumentParser":
        return MISSING
    if method == "add_argument":
        _add_option(parser, arguments, keywords, line)
        return None
    if method in ("add_argument_group", "add_mutually_exclusive_group"):
        return parser
    if method in ("parse_args", "parse_known_args"):
        options = Instance(dict(parser.slots), f"{parser.name}.parse_args")
        return options if method == "parse_args" else Items.of([options, Items.of([])])
    return MISSING


def _make_parsed(reader: Computation, kind: Value, node: ast.Call, frame: Frame) -> Value:
    """Return an object that a command line fills. A class of the script has its defaults, as an argparse option has."""
    made = reader.call(kind, [], {}, node, frame, {})
    if isinstance(made, Instance):
        made.is_parsed = True
    return made


def _add_option(parser: Instance, arguments: Sequence[Value], keywords: Mapping[Hashable, Value], line: int) -> None:
    """Record the default of an option that ``parser.add_argument`` defines, as a slot of the parser."""
    names = [each.known or "" for each in arguments if isinstance(each, Text)]
    written = next((each for each in names if each.startswith("--")), next(iter(names), ""))
    given = keywords.get("dest")
    name = given.known if isinstance(given, Text) else written.lstrip("-").replace("-", "_")
    if not name:
        return
    action = keywords.get("action")
    kind = action.known if isinstance(action, Text) else ""
    if "default" in keywords:
        value = keywords["default"]
    elif kind in ("store_true", "store_false"):
        value = kind == "store_false"
    elif keywords.get("required") is True or not written.startswith("-"):
        value = Unknown(f"the option {written} has no default", line)
    else:
        value = None
    parser.slots[name] = value


def apply_method(
    reader: Computation, owner: Slots | Text, name: str, arguments: Sequence[Value], keywords: Mapping[Hashable, Value],
    node: ast.Call, frame: Frame,
) -> Value:  # fmt: skip
    """Return the result of a method of a text, list or dict."""
    if isinstance(owner, Text):
        return _text_method(reader, owner, name, arguments, keywords, node, frame)
    first = arguments[0] if arguments else None
    if isinstance(owner, Items):
        items = owner.items
        if name in ("append", "add"):
            reader.heap.write(owner, "items", (*items, first))
        elif name == "extend":
            reader.heap.write(owner, "items", (*items, *reader.items_of(first, node)))
        elif name == "insert" and isinstance(first, int) and len(arguments) > 1:
            reader.heap.write(owner, "items", (*items[:first], arguments[1], *items[first:]))
        elif name == "copy":
            return Items.of(items)
        elif name in ("remove", "pop", "clear", "sort", "reverse"):
            reader.heap.write(owner, "items", () if name == "clear" else (Unknown(f"the list is changed by {name}"),))
        return None if name in ("append", "add", "extend", "insert") else reader.unknown(node)
    if not isinstance(owner, Table):
        return reader.unknown(node)
    key = reader.key(first)
    if name in ("get", "pop", "setdefault") and key is not MISSING:
        default = arguments[1] if len(arguments) > 1 else None
        value = owner.slots.get(key, default)
        if name != "get":
            reader.heap.write(owner, key, MISSING if name == "pop" else value)
        return value
    if name == "update":
        reader.update_table(owner, first)
        reader.update_table(owner, Table(dict(keywords)))
        return None
    if name in ("keys", "values", "items"):
        keys = reader.iterate(owner) or ()
        if name == "items":
            return Items.of([Items.of(pair) for pair in zip(keys, owner.slots.values(), strict=True)])
        return Items.of(keys if name == "keys" else tuple(owner.slots.values()))
    return Table(dict(owner.slots)) if name == "copy" else reader.unknown(node)


def _text_method(
    reader: Computation, owner: Text, name: str, arguments: Sequence[Value], keywords: Mapping[Hashable, Value],
    node: ast.Call, frame: Frame,
) -> Value:  # fmt: skip
    """Return the result of a method of a text; a partly unknown text keeps its lines if possible."""
    if name == "join" and arguments and (items := reader.iterate(arguments[0])) is not None:
        return reader.joined([reader.text_of(item, node, frame) for item in items], owner.shown)
    if (
        name in ("strip", "rstrip", "lstrip", "dedent", "resolve", "absolute", "as_posix", "expanduser")
        and not arguments
    ):
        # Blanks at the ends change no command; the places stay.
        return owner if owner.reason or len(owner.pieces) > 1 else _strip(owner, name)
    plain = [to_plain(each) for each in arguments]
    known = owner.known
    reason = owner.reason or next((why for _, why in plain if why), "")
    if known is None or reason:
        if name in ("format", "split", "splitlines"):
            return reader.unknown(node)
        return Unknown(reason, node.lineno)
    values = [value for value, _ in plain]
    try:
        if name in TEXT_METHODS:
            texts = [str(value) for value in values[:2]]
            if name == "replace" and len(texts) == 2 and known.count(texts[0]) * len(texts[1]) > LONGEST:
                return reader.unknown(node)
            result: object = getattr(known, name)(*values)
        elif name in ("split", "splitlines"):
            return Items.of(
                [reader.make_text(part, node.lineno, frame.module) for part in getattr(known, name)(*values)]
            )
        elif name in ("exists", "is_file", "is_dir"):
            return reader.unknown(node)
        else:
            return reader.unknown(node)
    except (TypeError, ValueError):
        return reader.unknown(node)
    if isinstance(result, str):
        if len(result) > LONGEST:
            return reader.unknown(node)
        line = owner.pieces[0].line if owner.pieces else node.lineno
        return reader.make_text(result, line, frame.module)
    return bool(result)


def _strip(text: Text, name: str) -> Text:
    if name not in ("strip", "rstrip", "lstrip"):
        return text
    return Text(tuple(Piece(getattr(each.text, name)(), each.line, each.file) for each in text.pieces))
