"""Parses one override of Hydra's command line: ``a.b=1``, ``+a=[x]``, ``++a={b: 1}``, ``~a``, ``group@package=option``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ckptcheck.jobs.hydra.value_grammar import FunctionCall, GrammarError, ValueParser

NAME = r"[A-Za-z_$][A-Za-z0-9_$-]*"
NUMBER = r"(?:0|[1-9](?:_?\d)*)"
PACKAGE = rf"(?:(?:{NAME}|{NUMBER})(?:\.(?:{NAME}|{NUMBER}))+|{NAME})"
GROUP = r"[A-Za-z_][A-Za-z0-9_-]*(?:/[A-Za-z_][A-Za-z0-9_-]*)+"
KEY = re.compile(rf"(~|\+{{0,2}})({GROUP}|{PACKAGE})(?:(@)({PACKAGE})?)?(?:(=)[ \t]*|$)")
INTERPOLATION = re.compile(r"\$\{[^}]+\}")
CASTS = {"int": int, "float": float, "str": str, "bool": bool}
SWEEPS = ("choice", "range", "interval", "glob", "tag", "sort", "shuffle")

Kind = Literal["", "+", "++", "~"]


@dataclass(frozen=True)
class Override:
    """One override of a configuration."""

    kind: Kind
    """"" changes a key, + adds one, ++ does either, ~ removes it."""
    key: str
    """The dotted path of the key, or the config group."""
    package: str | None
    """The package of a config group (``group@package=option``); None if the override names none."""
    value: object
    """A scalar, None, a list, a dict; None too for ``~key``."""
    has_value: bool = True
    """Whether a value is written; only ~ can be without one."""
    is_sweep: bool = False
    """Whether the value lists several runs (``a=1,2``), which needs ``--multirun``."""
    reason: str = ""
    """Why the value is unknown; "" if it is known."""

    @property
    def group_key(self) -> str:
        """The key of a choice as Hydra writes it: group, or group@package."""
        return self.key if self.package is None else f"{self.key}@{self.package}"


def parse_override(text: str) -> Override:
    """Parse an override as hydra-core 1.3 does.

    Raises GrammarError for a text that Hydra refuses; the message says why.

    >>> parse_override("+a.b=[1, x y]").value, parse_override("~a").kind, parse_override("a='1'").value
    ([1, 'x y'], '~', '1')
    """
    match = KEY.match(text)
    if match is None or (match[5] is None and match[1] != "~"):
        raise GrammarError("it is no override of the form key=value")
    kind: Kind = match[1]  # type: ignore[assignment]
    key, package = match[2], (match[4] or "") if match[3] else None
    if match[5] is None or match.end() == len(text):
        return Override(kind, key, package, "" if match[5] else None, has_value=bool(match[5]))
    parser = ValueParser(text, match.end(), _read_interpolation, join=_join, unquote=_unquote, functions=True)
    value: object = parser.element()
    is_sweep = False
    token, _ = parser.token()
    while token.kind == "comma":
        is_sweep = True
        parser.take(token)
        parser.element()
        token, _ = parser.token()
    if token.kind:
        raise parser.unexpected(token)
    reason = ""
    if isinstance(value, FunctionCall):
        value, is_sweep, reason = _evaluate(value, is_sweep)
    return Override(kind, key, package, value, is_sweep=is_sweep, reason=reason)


def _evaluate(call: FunctionCall, is_sweep: bool) -> tuple[object, bool, str]:
    """Evaluate a cast. Returns (value, whether the function makes a sweep, why the value is unknown). Raises
    GrammarError.
    """
    if call.name in SWEEPS:
        return None, True, ""
    cast = CASTS.get(call.name)
    if cast is None:
        raise GrammarError(f"Hydra has no function {call.name}")
    if len(call.arguments) == 1 and isinstance(call.arguments[0], (int, float, str)) and cast is not bool:
        try:
            value = cast(call.arguments[0])
        except (ValueError, OverflowError) as error:
            raise GrammarError(f"{call.name} cannot convert its argument") from error
        text = call.arguments[0]
        return (str(text).lower() if cast is str and isinstance(text, bool) else value), is_sweep, ""
    return None, is_sweep, f"Hydra's function {call.name} computes it"


def _read_interpolation(text: str, start: int) -> tuple[object, int]:
    """Return an interpolation as text, and its end: Hydra's grammar ends it at the first brace."""
    match = INTERPOLATION.match(text, start)
    if match is None:
        raise GrammarError("an interpolation has no end")
    return match[0], match.end()


def _join(parts: list[object]) -> object:
    return "".join(str(part) for part in parts)


def _unquote(quoted: str) -> str:
    """Remove the quotes of a text, and the backslashes that escape quotes in it or stand before its end."""
    quote = quoted[0]
    text = re.sub(rf"(\\+){quote}", lambda match: match[1][1::2] + quote, quoted[1:])
    return text[:-1]
