"""Splits shell text into tokens: operators, and words that consist of plain text and expansions."""

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
"""Largest depth of brackets inside ``${…}`` or ``$(…)``."""


@dataclass(frozen=True)
class ShellChunk:
    """A part of a word that is either plain text or one expansion."""

    kind: Literal["text", "parameter", "command"]
    """text: plain text; parameter: ``$NAME`` or ``${…}``; command: ``$(…)`` or backticks."""
    text: str
    """The plain text, or what is between the brackets of the expansion."""
    quoted: bool = False
    """Whether the part is in quotes or escaped, so that the shell does not split it at blanks."""


@dataclass(frozen=True)
class ShellToken:
    """A word or an operator of a script."""

    line: int
    """The line where it begins, from 1."""
    chunks: tuple[ShellChunk, ...] = ()
    """The parts of a word; empty for an operator."""
    operator: str | None = None
    """The operator, which can be a line end; None for a word."""
    array: tuple[ShellToken, ...] | None = field(default=None)
    """The words in the brackets of ``NAME=( … )``; None for any other token."""

    @property
    def start(self) -> str:
        """The plain text with which the word begins: ``NAME=`` of an assignment."""
        return self.chunks[0].text if self.chunks and self.chunks[0].kind == "text" else ""

    @property
    def bare(self) -> str:
        """The text of a word that is plain and not quoted; "" for any other word."""
        is_plain = len(self.chunks) == 1 and self.chunks[0].kind == "text" and not self.chunks[0].quoted
        return self.chunks[0].text if is_plain else ""


def tokenize(text: str, name: str) -> Iterator[ShellToken]:
    """Yield the tokens of a script. name: the file as error messages name it.

    Raises CkptcheckError, with the line, for a quote or bracket that is never closed.
    """
    return _Lexer(text, name).tokens()


class _Lexer:
    """Reads tokens from a text. at: the position of the next character; line: its line, from 1."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.at, self.line = 0, 1

    def tokens(self) -> Iterator[ShellToken]:
        """Yield the remaining tokens, without redirections and here-documents."""
        heredocs: list[str] = []
        while (token := self.token()) is not None:
            if token.operator in ("<<", "<<-"):
                delimiter = self.token()
                heredocs.append(delimiter.start if delimiter is not None else "")
                continue
            if (token.operator and token.operator[0] in "<>&" and token.operator not in ("&&", "&")) or (
                token.operator and token.operator[0].isdigit()
            ):
                # Skip the file or descriptor of the redirection.
                self.token()
                continue
            yield token
            if token.operator == "\n":
                for end_word in heredocs:
                    self.skip_document(end_word)
                heredocs.clear()

    def token(self) -> ShellToken | None:
        """Read a word or an operator; None at the end."""
        self.space()
        if self.at >= len(self.text):
            return None
        line = self.line
        if operator := OPERATORS.match(self.text, self.at):
            self.forward(operator.end())
            return ShellToken(line, operator=operator[0])
        chunks: list[ShellChunk] = []
        while self.at < len(self.text) and not self.text[self.at].isspace():
            if OPERATORS.match(self.text, self.at) and not self.text[self.at].isdigit():
                if self.text[self.at] == "(" and chunks and ARRAY.fullmatch(chunks[-1].text) and not chunks[-1].quoted:
                    return ShellToken(line, tuple(chunks), array=self.array(line))
                break
            self.part(chunks)
        return ShellToken(line, tuple(chunks))

    def array(self, line: int) -> tuple[ShellToken, ...]:
        """Read the words of ``( … )`` from its opening bracket on. line: of the assignment, for the error."""
        self.forward(self.at + 1)
        items: list[ShellToken] = []
        while (token := self.token()) is not None:
            if token.operator == ")":
                return tuple(items)
            if token.operator is None:
                items.append(token)
        raise CkptcheckError(f"{self.name}:{line} an array's ( is never closed")

    def part(self, chunks: list[ShellChunk]) -> None:
        """Read one part of a word and add it to the chunks."""
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
        else:
            # A # inside a word does not start a comment.
            self.add(chunks, sign)
            self.forward(self.at + 1)

    def double(self, chunks: list[ShellChunk]) -> None:
        """Read text in double quotes and add it to the chunks."""
        line = self.line
        self.forward(self.at + 1)
        chunks.append(ShellChunk("text", "", quoted=True))
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                self.forward(self.at + 1)
                return
            if sign == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                escaped = self.text[self.at + 1]
                self.add(chunks, "" if escaped == "\n" else escaped, quoted=True)
                self.forward(self.at + 2)
            elif sign in "$`":
                self.dollar(chunks, quoted=True)
            else:
                self.add(chunks, sign, quoted=True)
                self.forward(self.at + 1)
        raise CkptcheckError(f'{self.name}:{line} a " is never closed')

    def dollar(self, chunks: list[ShellChunk], *, quoted: bool) -> None:
        """Read ``$NAME``, ``${…}``, ``$(…)``, ``$((…))`` or backticks and add it to the chunks."""
        if self.text[self.at] == "`":
            end = self.find("`", self.at + 1)
            chunks.append(ShellChunk("command", self.text[self.at + 1 : end], quoted))
            self.forward(end + 1)
            return
        following = self.text[self.at + 1 : self.at + 2]
        if following == "{":
            end = self.closing(self.at + 1, "{", "}")
            chunks.append(ShellChunk("parameter", self.text[self.at + 2 : end], quoted))
            self.forward(end + 1)
        elif following == "(":
            end = self.closing(self.at + 1, "(", ")")
            chunks.append(ShellChunk("command", self.text[self.at + 2 : end], quoted))
            self.forward(end + 1)
        elif name := re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(self.text, self.at + 1):
            chunks.append(ShellChunk("parameter", name[0], quoted))
            self.forward(name.end())
        else:
            self.add(chunks, "$", quoted=quoted)
            self.forward(self.at + 1)

    def closing(self, at: int, opening: str, closing: str) -> int:
        """Return the position of the bracket that closes the one at `at`. Raises CkptcheckError where there is none."""
        depth = 0
        for position in range(at, len(self.text)):
            if self.text[position] == opening:
                depth += 1
            elif self.text[position] == closing:
                depth -= 1
                if depth == 0:
                    return position
            if depth > DEEPEST:
                break
        raise CkptcheckError(f"{self.name}:{self.line} a {opening} is never closed")

    def find(self, sign: str, at: int) -> int:
        """Return the position of the next `sign` from `at` on. Raises CkptcheckError where there is none."""
        position = self.text.find(sign, at)
        if position < 0:
            raise CkptcheckError(f"{self.name}:{self.line} a {sign} is never closed")
        return position

    def add(self, chunks: list[ShellChunk], text: str, *, quoted: bool = False) -> None:
        """Add plain text: to the last chunk where that is text with the same quoting, else as a new chunk."""
        if chunks and chunks[-1].kind == "text" and (chunks[-1].quoted == quoted or not chunks[-1].text):
            chunks[-1] = replace(chunks[-1], text=chunks[-1].text + text, quoted=quoted or chunks[-1].quoted)
        else:
            chunks.append(ShellChunk("text", text, quoted))

    def space(self) -> None:
        """Skip blanks, line continuations and comments."""
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
        """Skip the lines of a here-document up to the line with its delimiter."""
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            line = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.forward(len(self.text) if end < 0 else end + 1)
            if line.strip("\t ") == end_word:
                return

    def forward(self, to: int) -> None:
        """Move to a position, and count the lines on the way."""
        self.line += self.text.count("\n", self.at, to)
        self.at = min(to, len(self.text))
