"""Parses the values of Hydra's overrides and of the arguments of OmegaConf's resolvers; the two grammars are nearly one.

Written from the grammars of hydra-core 1.3 (OverrideLexer.g4, OverrideParser.g4) and OmegaConf 2.3. ckptcheck does not call
their parsers: both need antlr4-python3-runtime 4.9, but a training environment often holds another release; they build
trees without a bound, and they forget where a value was written. tests/jobs/test_against_hydra.py compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ckptcheck.jobs.budget import current_budget

DEEPEST = 60
"""Largest depth of lists and dicts in each other."""
BLANK = r"[ \t]*"
WHOLE_NUMBER = r"(?:0|[1-9](?:_?\d)*)"
FRACTION = rf"(?:{WHOLE_NUMBER}?\.\d(?:_?\d)*|{WHOLE_NUMBER}\.)"
TOKENS = {
    "open": rf"{BLANK}\({BLANK}",
    "comma": rf"{BLANK},{BLANK}",
    "close": rf"{BLANK}\)",
    "list": rf"\[{BLANK}",
    "end of list": rf"{BLANK}\]",
    "dict": rf"\{{{BLANK}",
    "end of dict": rf"{BLANK}\}}",
    "colon": rf"{BLANK}:{BLANK}",
    "equal": rf"{BLANK}={BLANK}",
    "float": rf"[+-]?(?:(?:{FRACTION}|{WHOLE_NUMBER})[eE][+-]?\d(?:_?\d)*|{FRACTION}|[Ii][Nn][Ff]|[Nn][Aa][Nn])",
    "int": rf"[+-]?{WHOLE_NUMBER}",
    "bool": r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]",
    "null": r"[Nn][Uu][Ll][Ll]",
    "sign": r"[/\-\\+.$%*@?|]",
    "name": r"[A-Za-z_][A-Za-z0-9_-]*",
    "escape": r"(?:\\[\\()\[\]{}:=, \t])+",
    "blank": r"[ \t]+",
    "quoted": r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"",
}
"""Kind of a token → its form. The longest token counts, of equally long ones the first kind."""
PATTERNS = [(kind, re.compile(pattern, re.ASCII | re.DOTALL)) for kind, pattern in TOKENS.items()]
PLAIN = frozenset(("name", "null", "int", "float", "bool", "interpolation", "sign", "colon", "escape", "blank"))
"""Kinds of tokens that a value without quotes consists of."""


class GrammarError(ValueError):
    """A text that the grammar refuses. The message names the position and the text there."""


@dataclass(frozen=True)
class Token:
    """One token of a value."""

    kind: str
    text: str
    start: int
    """The position in the text, from 0."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of Hydra's functions: ``range(1, 5)``, ``int(3.2)``."""

    name: str
    arguments: tuple[object, ...]


class ValueParser:
    """Parses elements: plain values, quoted ones, lists and dicts.

    read_interpolation takes (text, the position of a ``${``) and returns (the value that stands for it, its end); it raises
    GrammarError. joins: how to join the tokens of a plain value with an interpolation among them.
    """

    def __init__(
        self,
        text: str,
        start: int,
        read_interpolation: Callable[[str, int], tuple[object, int]],
        *,
        join: Callable[[list[object]], object],
        unquote: Callable[[str], object],
        functions: bool = False,
    ) -> None:
        self.text = text
        self.at = start
        self.read_interpolation = read_interpolation
        self.join = join
        self.unquote = unquote
        self.functions = functions
        self.budget = current_budget()
        self._peeked: tuple[Token, object] | None = None

    def token(self) -> tuple[Token, object]:
        """Return the next token without taking it, and the value of an interpolation; the kind is "" at the end."""
        if self._peeked is not None and self._peeked[0].start == self.at:
            return self._peeked
        self._peeked = self._read_token()
        return self._peeked

    def _read_token(self) -> tuple[Token, object]:
        """Read the next token, and keep it: without that, reads of nested interpolations would double at each depth."""
        self.budget.spend(1, "an override or interpolation")
        if self.at >= len(self.text):
            return Token("", "", self.at), None
        if self.text.startswith("${", self.at):
            value, end = self.read_interpolation(self.text, self.at)
            return Token("interpolation", self.text[self.at : end], self.at), value
        longest = Token("", "", self.at)
        for kind, pattern in PATTERNS:
            match = pattern.match(self.text, self.at)
            if match and len(match[0]) > len(longest.text):
                longest = Token(kind, match[0], self.at)
        if not longest.text:
            raise GrammarError(f"{self.text[self.at]} cannot stand there without quotes")
        return longest, None

    def take(self, token: Token) -> None:
        """Go on behind a token."""
        self.at = token.start + len(token.text)

    def element(self, depth: int = 0) -> object:
        """Parse one element and go on behind it. Raises GrammarError."""
        if depth > DEEPEST:
            raise GrammarError("lists are nested too deeply")
        token, _ = self.token()
        if token.kind == "list":
            self.take(token)
            return self.items("end of list", depth)
        if token.kind == "dict":
            self.take(token)
            return self.pairs(depth)
        if token.kind == "quoted":
            self.take(token)
            following, _ = self.token()
            if following.kind in PLAIN - {"colon"} or following.kind == "quoted":
                raise self.unexpected(following)
            return self.unquote(token.text)
        if token.kind == "name" and self.functions:
            self.take(token)
            following, _ = self.token()
            if following.kind == "open":
                self.take(following)
                return FunctionCall(token.text, tuple(self.items("close", depth)))
            self.at = token.start
        return self.plain(PLAIN)

    def items(self, end: str, depth: int) -> list[object]:
        """Parse the elements of a list, or the arguments of a function, up to its end. end: the kind of its last token."""
        found: list[object] = []
        token, _ = self.token()
        while token.kind != end:
            found.append(self.element(depth + 1))
            token, _ = self.token()
            if token.kind == "comma":
                self.take(token)
                following, _ = self.token()
                if following.kind == end:
                    raise GrammarError("an element is missing behind the last comma")
            elif token.kind != end:
                raise self.unexpected(token)
        self.take(token)
        return found

    def pairs(self, depth: int) -> dict[object, object]:
        """Parse the keys and values of a dict, up to its end."""
        found: dict[object, object] = {}
        token, _ = self.token()
        while token.kind != "end of dict":
            key = self.plain(PLAIN - {"colon", "interpolation"})
            token, _ = self.token()
            if token.kind != "colon":
                raise self.unexpected(token)
            self.take(token)
            found[key] = self.element(depth + 1)
            token, _ = self.token()
            if token.kind == "comma":
                self.take(token)
                following, _ = self.token()
                if following.kind == "end of dict":
                    raise GrammarError("an element is missing behind the last comma")
            elif token.kind != "end of dict":
                raise self.unexpected(token)
        self.take(token)
        return found

    def plain(self, kinds: frozenset[str]) -> object:
        """Parse a value without quotes: one token is a number, true, null or text, several are text. kinds: allowed ones."""
        tokens: list[tuple[Token, object]] = []
        while True:
            token, value = self.token()
            if token.kind not in kinds:
                break
            self.take(token)
            tokens.append((token, value))
        if token.kind == "quoted":
            raise GrammarError("a quote begins inside of a value")
        while tokens and tokens[0][0].kind == "blank":
            del tokens[0]
        while tokens and tokens[-1][0].kind == "blank":
            del tokens[-1]
        if not tokens:
            raise self.unexpected(token)
        if len(tokens) == 1:
            return convert_token(*tokens[0])
        parts = [
            value if token.kind == "interpolation" else token.text[1::2] if token.kind == "escape" else token.text
            for token, value in tokens
        ]
        return self.join(parts)

    def unexpected(self, token: Token) -> GrammarError:
        """Make the error for a token in a wrong place."""
        return GrammarError(
            f"{token.text.strip()} cannot stand there without quotes" if token.text else "it ends too early"
        )


def convert_token(token: Token, value: object) -> object:
    """Return the value of a single token. value: of an interpolation."""
    match token.kind:
        case "interpolation":
            return value
        case "int":
            # Python refuses to convert a text of more than 4,300 digits.
            return int(token.text) if len(token.text) < 4000 else token.text
        case "float":
            return float(token.text)
        case "bool":
            return token.text.lower() == "true"
        case "null":
            return None
        case "escape":
            return token.text[1::2]
    return token.text
