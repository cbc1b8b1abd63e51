"""Resolves OmegaConf's interpolations: references to other keys, ``oc.env``, ``oc.select`` and the like, which run nothing.

A resolver of the job (``${mul:2,3}``) is computed where its framework registers one that is known; else the result states the
reason why it is not resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.hydra.value_grammar import GrammarError, ValueParser
from ckptcheck.jobs.yaml_file import parse_scalar

DEEPEST = 60
"""How many references may follow one another, in each other or one to the next."""
MOST = 1e18
"""Largest number with which a resolver of the job computes."""
REFERENCE = re.compile(r"\$\{\s*(\.*[^\s.\[\]{}$:'\"()\\][^\s\[\]{}$:'\"()\\]*)\s*\}")
"""An interpolation that refers to a key by its path alone: ``${a.b}``, ``${..a}``."""
SELECTED = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*[^\s.,\[\]{}$:'\"()\\][^\s,\[\]{}$:'\"()\\]*)\s*[,}]")
"""What a value takes first: ``${a.b}``, ``${oc.select:a.b,1}``."""
KEY = re.compile(r"[^\\{}()\[\]:. \t'\"$]+")


@dataclass(frozen=True)
class ResolvedValue:
    """The value of a key after its interpolations are resolved."""

    value: object
    """The value; None where `reason` is not empty. For a section it is {}."""
    leaf: Leaf
    """The leaf that writes the key."""
    reason: str = ""
    """Why the value cannot be resolved; "" where it is resolved."""


class Unresolved(Exception):
    """An interpolation that cannot be resolved; the message is the reason."""


def resolve(document: Document, path: str) -> ResolvedValue | None:
    """Return the resolved value of a key, or None where the document does not have the key.

    Raises CkptcheckError where the interpolations come to more work than the document's budget has.
    """
    try:
        return _Resolver(document).remembered(path)
    except RecursionError:
        return ResolvedValue(None, Leaf(None, path), f"{clip(path, 60)} is nested too deeply to be resolved")


def find_reference(value: object, path: str) -> str | None:
    """Return the absolute path that a value refers to as a whole (``${a.b}``, ``${..b}``), or None where it does not.

    path: that of the key with the value; leading dots are relative to it.
    """
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return _make_absolute(match[1], path) if match else None


def _make_absolute(reference: str, path: str) -> str | None:
    """Return the absolute form of a path with leading dots: one for the section of the key, two for that above."""
    name = reference.lstrip(".")
    dots = len(reference) - len(name)
    parts = path.split(".")
    if not dots:
        return name
    return ".".join([*parts[: len(parts) - dots], name]) if dots <= len(parts) else None


class _Resolver:
    """Resolves one key of a document; it remembers the keys that wait for one another."""

    def __init__(self, document: Document) -> None:
        self.document = document
        # The paths that are being resolved, outermost first.
        self.waiting: list[str] = []
        # Whether a reference closed a circle: what was found meanwhile depends on where it was entered.
        self.met_circle = False

    def value_of(self, path: str) -> ResolvedValue | None:
        """Return the value of a key, None where there is none."""
        leaf = self.document.leaves.get(path)
        if leaf is None:
            return self.below_reference(path)
        if leaf.reason:
            return ResolvedValue(None, leaf, leaf.reason)
        self.waiting.append(path)
        try:
            return ResolvedValue(self.plain(leaf.value, path), self.origin(leaf, path))
        except Unresolved as unresolved:
            return ResolvedValue(None, leaf, str(unresolved))
        finally:
            self.waiting.pop()

    def origin(self, leaf: Leaf, path: str) -> Leaf:
        """Return the leaf that a default takes its value from, where the job writes that one; else the leaf itself."""
        match = SELECTED.match(leaf.value) if leaf.is_default and isinstance(leaf.value, str) else None
        target = _make_absolute(match[1], path) if match else None
        found = self.document.resolved.get(target) if target else None
        return found.leaf if isinstance(found, ResolvedValue) and not found.leaf.is_default else leaf

    def below_reference(self, path: str) -> ResolvedValue | None:
        """Return the value of a key below another: after ``ref: ${actor}``, ref.lr is actor.lr; a.0 is the first of a list."""
        parts = path.split(".")
        for length in range(len(parts) - 1, 0, -1):
            section = ".".join(parts[:length])
            leaf = self.document.leaves.get(section)
            if leaf is None:
                continue
            if isinstance(leaf.value, (list, dict)):
                return self.inside(leaf, section, parts[length:])
            target = find_reference(leaf.value, section)
            if target is None or section in self.waiting or len(self.waiting) > DEEPEST:
                return None
            self.waiting.append(section)
            try:
                return self.remembered(".".join([target, *parts[length:]]))
            finally:
                self.waiting.pop()
        return None

    def inside(self, leaf: Leaf, section: str, rest: list[str]) -> ResolvedValue | None:
        """Return the value that lies in a list, by its numbers and the keys of dicts. section: the path of the list."""
        value, path = leaf.value, section
        for name in rest:
            path = f"{path}.{name}"
            if isinstance(value, list) and re.fullmatch(r"-?\d{1,6}", name) and -len(value) <= int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict) and name in value:
                value = value[name]
            else:
                return None
        try:
            return ResolvedValue(self.plain(value, path), leaf)
        except Unresolved as unresolved:
            return ResolvedValue(None, leaf, str(unresolved))

    def remembered(self, path: str) -> ResolvedValue | None:
        """Return the value of a key, from memory where it was resolved before."""
        known = self.document.resolved.get(path)
        if isinstance(known, ResolvedValue):
            return known
        found = self.value_of(path)
        if found is not None and not self.met_circle:
            self.document.resolved[path] = found
        return found

    def plain(self, value: object, path: str) -> object:
        """Resolve all interpolations in a value, also in lists. Raises Unresolved. path: that of the value."""
        if isinstance(value, list):
            self.spend(len(value) + 1, path)
            return [self.plain(item, f"{path}.{number}") for number, item in enumerate(value)]
        if isinstance(value, dict):
            self.spend(len(value) + 1, path)
            return {name: self.plain(item, f"{path}.{name}") for name, item in value.items()}
        if not isinstance(value, str):
            return value
        if value == "???":
            raise Unresolved("the job requires a value (???), and none is given")
        return self.text(value, path) if "${" in value else value

    def spend(self, steps: int, path: str) -> None:
        """Take steps from the document's budget."""
        self.document.budget.spend(steps, clip(path, 60))

    def text(self, text: str, path: str) -> object:
        """Resolve the interpolations in a text; a text that is one interpolation gets its value as it is."""
        self.spend(len(text), path)
        parts: list[object] = []
        at = 0
        while (opening := text.find("${", at)) >= 0:
            before = text[at:opening]
            backslashes = len(before) - len(before.rstrip("\\"))
            if literal := before[: len(before) - (backslashes + 1) // 2]:
                parts.append(literal)
            if backslashes % 2:
                parts.append("${")
                at = opening + 2
                continue
            try:
                value, at = self.interpolation(text, opening, path)
            except GrammarError as error:
                raise Unresolved(f"{clip(text, 60)} is no interpolation that is understood") from error
            parts.append(value)
        if at < len(text):
            parts.append(text[at:])
        return self.join(parts, path)

    def join(self, parts: list[object], path: str) -> object:
        """Put the parts of a text together as OmegaConf does; one part alone stays what it is."""
        if len(parts) == 1:
            return parts[0]
        texts = []
        for part in parts:
            self.spend(len(part) if isinstance(part, str) else 10 * count_values(part), path)
            texts.append(str(part))
        return "".join(texts)

    def interpolation(self, text: str, start: int, path: str) -> tuple[object, int]:
        """Resolve the interpolation that begins at ``${``. Returns (value, its end). Raises Unresolved, GrammarError."""
        if len(self.waiting) > DEEPEST:
            raise Unresolved(f"{clip(text, 60)} is at the end of more than {DEEPEST} references")
        self.waiting.append("${")
        try:
            end = _skip(text, start + 2, " \t")
            begin = _skip(text, end, ".")
            dots = begin - end
            name, end = self.name(text, begin, path)
            if end < len(text) and text[end] == ":" and not dots:
                return self.call(text, start, name, end + 1, path)
        finally:
            self.waiting.pop()
        end = _skip(text, end, " \t")
        if not text.startswith("}", end):
            raise GrammarError("the interpolation has no end")
        return self.reference("." * dots + name, text[start + 2 : end], path), end + 1

    def name(self, text: str, at: int, path: str) -> tuple[str, int]:
        """Read the path of a key, ``a.b[0].${c}``, or the name of a resolver. Returns (path with dots, its end)."""
        name = ""
        while at < len(text):
            if text.startswith("${", at):
                value, at = self.interpolation(text, at, path)
                if not isinstance(value, str):
                    raise Unresolved(f"{clip(text, 60)} takes {clip(str(value), 20)} for the name of a key")
                name += value
            elif text[at] in ".[":
                name += "." if name else ""
                at += 1
            elif text[at] == "]":
                at += 1
            elif match := KEY.match(text, at):
                name += match[0]
                at = match.end()
            else:
                break
        if not name:
            raise GrammarError("the interpolation has no name")
        return name, at

    def reference(self, reference: str, written: str, path: str) -> object:
        """Return the value of the key that an interpolation refers to. written: the text between ``${`` and ``}``."""
        target = _make_absolute(reference, path)
        missing = f"${{{clip(written, 60)}}} refers to a key that does not exist"
        if not target:
            raise Unresolved(missing)
        if target in self.waiting:
            self.met_circle = True
            raise Unresolved(f"${{{clip(written, 60)}}} refers to itself")
        found = self.remembered(target)
        if found is None:
            if self.document.has(target):
                return {}
            raise Unresolved(missing)
        if found.reason:
            raise Unresolved(found.reason)
        self.spend(count_values(found.value), path)
        return found.value

    def call(self, text: str, start: int, name: str, at: int, path: str) -> tuple[object, int]:
        """Resolve ``${name:arguments}``. at: the position behind the colon. Returns (value, end)."""
        unresolved: list[Unresolved] = []

        def read_argument(text: str, at: int) -> tuple[object, int]:
            try:
                return self.interpolation(text, at, path)
            except Unresolved as error:
                unresolved.append(error)
                return "", _find_end(text, at)

        parser = ValueParser(
            text, _skip(text, at, " \t"), read_argument,
            join=lambda parts: self.join(parts, path), unquote=lambda quoted: self.plain(_unquote(quoted), path),
        )  # fmt: skip
        arguments = _read_arguments(parser)
        written = text[start : parser.at]
        resolver = RESOLVERS.get(name)
        compute = self.document.resolvers.get(name)
        if resolver is None and compute is None:
            raise Unresolved(f"{clip(written, 60)} is computed by the job itself")
        if unresolved:
            raise unresolved[0]
        if resolver is not None:
            return resolver(self, arguments, path), parser.at
        value = _compute(compute, arguments)
        if value is None:
            raise Unresolved(f"{clip(written, 60)} is computed by the job itself")
        return value, parser.at

    def environment(self, arguments: list[object], path: str) -> object:
        """Return a variable that the job's script or the user sets, else the default: ``${oc.env:NAME,default}``.

        ckptcheck's own environment is never read: it may hold secrets, and a report shows values.
        """
        name = str(arguments[0]) if arguments else ""
        exported = self.document.environment.get(name)
        if exported is not None and not exported.reason:
            return _read_variable(str(exported.value))
        if exported is not None:
            raise Unresolved(f"{clip(name, 60)}: {exported.reason}")
        if len(arguments) > 1:
            self.document.defaulted.add(name)
            return None if arguments[1] is None else _read_variable(str(arguments[1]))
        if name == "HOME":
            return "~"
        raise Unresolved(f"${clip(name, 60)} is taken from the environment of the job")

    def select(self, arguments: list[object], path: str) -> object:
        """Return the value of a key, or the default where there is none: ``${oc.select:a.b,default}``."""
        target = _make_absolute(str(arguments[0]), path) if arguments else None
        if target in self.waiting:
            raise Unresolved(f"${{oc.select:{clip(str(arguments[0]), 60)}}} refers to itself")
        found = self.remembered(target) if target else None
        if found is not None and found.reason:
            raise Unresolved(found.reason)
        if found is not None:
            self.spend(count_values(found.value), path)
            return found.value
        if target and self.document.has(target):
            return {}
        return arguments[1] if len(arguments) > 1 else None

    def decode(self, arguments: list[object], path: str) -> object:
        """Return the value that a text stands for: ``${oc.decode:"8"}`` is a number."""
        value = arguments[0] if arguments else None
        return _read_variable(value) if isinstance(value, str) else value


RESOLVERS = {"oc.env": _Resolver.environment, "oc.select": _Resolver.select, "oc.decode": _Resolver.decode}
"""The resolvers of OmegaConf that are followed: they look up or convert, and run nothing."""


def _compute(compute: Callable[[float, float], float] | None, arguments: list[object]) -> float | None:
    """Return what a resolver makes of two numbers; None where they are no numbers, too large, or have no result."""
    numbers = [each for each in arguments if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if (
        compute is None
        or len(numbers) != len(arguments)
        or len(numbers) != 2
        or any(abs(each) > MOST for each in numbers)
    ):
        return None
    try:
        return compute(*numbers)
    except ArithmeticError:
        return None


def _read_variable(text: str) -> object:
    """Read a variable of the environment: 8 is a number. OmegaConf keeps the text until a field of the job converts it."""
    return parse_scalar(text)


def _read_arguments(parser: ValueParser) -> list[object]:
    """Parse the arguments of a resolver up to its ``}``; a missing one is an empty text. Raises GrammarError."""
    arguments: list[object] = []
    missing = True
    while True:
        token, _ = parser.token()
        if token.kind == "end of dict":
            parser.take(token)
            if missing and arguments:
                arguments.append("")
            return arguments
        if token.kind == "comma":
            parser.take(token)
            if missing:
                arguments.append("")
            missing = True
        elif missing:
            arguments.append(parser.element())
            missing = False
        else:
            raise parser.unexpected(token)


def _unquote(quoted: str) -> str:
    """Remove the quotes of a text, and the backslashes before quotes in it."""
    return re.sub(rf"\\+(?={quoted[0]}|$)", lambda match: match[0][: len(match[0]) // 2], quoted[1:-1])


def _skip(text: str, at: int, signs: str) -> int:
    """Return the position of the first character from `at` on that is not one of `signs`."""
    while at < len(text) and text[at] in signs:
        at += 1
    return at


def _find_end(text: str, start: int) -> int:
    """Return the position behind the brace that closes the interpolation at `start`. Raises GrammarError if it stays open."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if text[at] == "}" and not depth:
            return at + 1
    raise GrammarError("the interpolation has no end")


def count_values(value: object) -> int:
    """Return how many values a value holds, itself included; a text counts by its length."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return 1 + sum(count_values(item) for item in value.values())
    return 1 + sum(count_values(item) for item in value) if isinstance(value, list) else 1
