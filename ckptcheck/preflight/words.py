"""Splits shell text into tokens: words, made of plain text and of what has to be expanded, and operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ckptcheck.errors import CkptcheckError

OPERATORS = re.compile(r"&&|\|\||;;|&>>?|[0-9]?>>?&?|<<<|<<-?|<&?|[;&|()\n]")
PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>#]+")
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
DEEPEST = 40


@dataclass(frozen=True)
class Chunk:
    """A part of a word. parameter: what stands in ``${…}``; command: what stands in ``$(…)`` or backticks."""

    kind: Literal["text", "parameter", "command"]
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Token:
    """A word, or an operator (a line end is one). array: the tokens of ``NAME=( … )``, else None."""

    line: int
    chunks: tuple[Chunk, ...] = ()
    operator: str | None = None
    array: tuple[Token, ...] | None = field(default=None)

    @property
    def start(self) -> str:
        """The plain text it begins with: ``NAME=`` of an assignment."""
        return self.chunks[0].text if self.chunks and self.chunks[0].kind == "text" else ""

    @property
    def bare(self) -> str:
        """The word where it is plain and not quoted, else ""."""
        only = len(self.chunks) == 1 and self.chunks[0].kind == "text" and not self.chunks[0].quoted
        return self.chunks[0].text if only else ""


def tokens(text: str, name: str) -> Iterator[Token]:
    """Yield the tokens of a script. Raises CkptcheckError, with the line, for a quote or bracket that is never closed."""
    return _Lexer(text, name).tokens()


class _Lexer:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.at, self.line = 0, 1

    def tokens(self) -> Iterator[Token]:
        """Yield all that follows."""
        heredocs: list[str] = []
        while (token := self.token()) is not None:
            if token.operator in ("<<", "<<-"):
                end = self.token()
                heredocs.append(end.start if end is not None else "")
                continue
            if (token.operator and token.operator[0] in "<>&" and token.operator not in ("&&", "&")) or (
                token.operator and token.operator[0].isdigit()
            ):
                self.token()  # what it redirects to
                continue
            yield token
            if token.operator == "\n":
                for end_word in heredocs:
                    self.skip_document(end_word)
                heredocs.clear()

    def token(self) -> Token | None:
        """Read a word or an operator; None at the end."""
        self.space()
        if self.at >= len(self.text):
            return None
        line = self.line
        if operator := OPERATORS.match(self.text, self.at):
            self.forward(operator.end())
            return Token(line, operator=operator[0])
        chunks: list[Chunk] = []
        while self.at < len(self.text) and not self.text[self.at].isspace():
            if OPERATORS.match(self.text, self.at) and not self.text[self.at].isdigit():
                if self.text[self.at] == "(" and chunks and ARRAY.fullmatch(chunks[-1].text) and not chunks[-1].quoted:
                    return Token(line, tuple(chunks), array=self.array(line))
                break
            self.part(chunks)
        return Token(line, tuple(chunks))

    def array(self, line: int) -> tuple[Token, ...]:
        self.forward(self.at + 1)
        items: list[Token] = []
        while (token := self.token()) is not None:
            if token.operator == ")":
                return tuple(items)
            if token.operator is None:
                items.append(token)
        raise CkptcheckError(f"{self.name}:{line} an array's ( is never closed")

    def part(self, chunks: list[Chunk]) -> None:
        """Read one part of a word."""
        sign = self.text[self.at]
        if sign == "\\":
            self.add(chunks, self.text[self.at + 1 : self.at + 2], quoted=True)
            self.forward(self.at + 2)
        elif sign == "'":
            end = self.find("'", self.at + 1)
            self.add(chunks, self.text[self.at + 1 : end], quoted=True)
            self.forward(end + 1)
        elif sign == '"':
            self.double(chunks)
        elif sign in "$`":
            self.dollar(chunks, quoted=False)
        elif plain := PLAIN.match(self.text, self.at):
            self.add(chunks, plain[0])
            self.forward(plain.end())
        else:  # a # inside a word
            self.add(chunks, sign)
            self.forward(self.at + 1)

    def double(self, chunks: list[Chunk]) -> None:
        line = self.line
        self.forward(self.at + 1)
        chunks.append(Chunk("text", "", quoted=True))
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                self.forward(self.at + 1)
                return
            if sign == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                kept = self.text[self.at + 1]
                self.add(chunks, "" if kept == "\n" else kept, quoted=True)
                self.forward(self.at + 2)
            elif sign in "$`":
                self.dollar(chunks, quoted=True)
            else:
                self.add(chunks, sign, quoted=True)
                self.forward(self.at + 1)
        raise CkptcheckError(f'{self.name}:{line} a " is never closed')

    def dollar(self, chunks: list[Chunk], *, quoted: bool) -> None:
        """Read ``$NAME``, ``${…}``, ``$(…)``, ``$((…))`` or backticks."""
        if self.text[self.at] == "`":
            end = self.find("`", self.at + 1)
            chunks.append(Chunk("command", self.text[self.at + 1 : end], quoted))
            self.forward(end + 1)
            return
        following = self.text[self.at + 1 : self.at + 2]
        if following == "{":
            end = self.closing(self.at + 1, "{", "}")
            chunks.append(Chunk("parameter", self.text[self.at + 2 : end], quoted))
            self.forward(end + 1)
        elif following == "(":
            end = self.closing(self.at + 1, "(", ")")
            chunks.append(Chunk("command", self.text[self.at + 2 : end], quoted))
            self.forward(end + 1)
        elif name := re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(self.text, self.at + 1):
            chunks.append(Chunk("parameter", name[0], quoted))
            self.forward(name.end())
        else:
            self.add(chunks, "$", quoted=quoted)
            self.forward(self.at + 1)

    def closing(self, at: int, opening: str, closing: str) -> int:
        """Where the bracket at `at` is closed."""
        depth = 0
        for place in range(at, len(self.text)):
            if self.text[place] == opening:
                depth += 1
            elif self.text[place] == closing:
                depth -= 1
                if depth == 0:
                    return place
            if depth > DEEPEST:
                break
        raise CkptcheckError(f"{self.name}:{self.line} a {opening} is never closed")

    def find(self, sign: str, at: int) -> int:
        place = self.text.find(sign, at)
        if place < 0:
            raise CkptcheckError(f"{self.name}:{self.line} a {sign} is never closed")
        return place

    def add(self, chunks: list[Chunk], text: str, *, quoted: bool = False) -> None:
        if chunks and chunks[-1].kind == "text" and (chunks[-1].quoted == quoted or not chunks[-1].text):
            chunks[-1] = replace(chunks[-1], text=chunks[-1].text + text, quoted=quoted or chunks[-1].quoted)
        else:
            chunks.append(Chunk("text", text, quoted))

    def space(self) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign != "\n" and sign.isspace():
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.forward(self.text.index("\n", self.at) + 1)
            elif sign == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_document(self, end_word: str) -> None:
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            line = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.forward(len(self.text) if end < 0 else end + 1)
            if line.strip("\t ") == end_word:
                return

    def forward(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = min(to, len(self.text))
