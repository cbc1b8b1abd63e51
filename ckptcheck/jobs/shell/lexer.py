"""Splits shell text into tokens: operators, and words that consist of plain text and expansions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import CHARACTERS, current_budget

OPERATORS = re.compile(r"&&|\|\||;;&?|;&|&>>?|[0-9]?>>?[&|]?|<<<|<<-?|<&?|[;&|()\n]")
PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>#]+")
IN_QUOTES = re.compile(r"[^\"\\$`]+")
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
EXPANDS = re.compile(r"[{(A-Za-z_0-9@*#?$!-]")
BRACKETS = re.compile(r"[{}()'\"\\]")
DEEPEST = 40
"""Largest depth of brackets inside ``${…}`` or ``$(…)``."""
MOST_PARTS = 2000
"""Largest number of quoted, escaped and plain parts of a word."""
HERE_STRING = "<<<"
DOCUMENT_FOLLOWS, HERE_DOCUMENT = "<<", "<<text"
"""Operators of the place where a command asks for a here-document, and of the token with its text."""


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
    """The parts of a word; the text of a here-document; empty for an operator."""
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


def tokenize(text: str, name: str, line: int = 1) -> Iterator[ShellToken]:
    """Yield the tokens of a script, without its redirections to files. A here-document is a token after its line.

    Args:
        text: The script.
        name: The file as error messages name it.
        line: The line of its first character.

    Raises:
        CkptcheckError: A quote or bracket is never closed; the message has the line.
    """
    return _Lexer(text, name, line).tokens()


class _Lexer:
    """Reads tokens from a text. at: the position of the next character; line: its line, from 1."""

    def __init__(self, text: str, name: str, line: int) -> None:
        self.text, self.name = text, name
        self.at, self.line = 0, line
        # The depth of ``"$(…)"`` that is skipped, the number of parts of the present word, and the depth of
        # arrays in each other.
        self.nested, self.parts, self.arrays = 0, 0, 0
        self.budget = current_budget()
        self.budget.spend(len(text) // CHARACTERS, name)

    def tokens(self) -> Iterator[ShellToken]:
        """Yield the remaining tokens."""
        # The delimiter of each here-document that begins after this line, and whether the shell expands its text.
        documents: list[tuple[str, bool]] = []
        while (token := self.token()) is not None:
            if token.operator in ("<<", "<<-"):
                delimiter = self.token()
                if delimiter is not None:
                    is_quoted = any(chunk.quoted for chunk in delimiter.chunks)
                    documents.append(("".join(chunk.text for chunk in delimiter.chunks), is_quoted))
                    yield ShellToken(token.line, operator=DOCUMENT_FOLLOWS)
                continue
            if token.operator == "\n" and documents:
                for end_word, is_quoted in documents:
                    yield self.document(end_word, is_quoted)
                documents.clear()
            if token.operator and self.is_redirection(token.operator):
                # Skip the file or descriptor of the redirection; of ``< <(command)`` the command is skipped too.
                following = self.token()
                if following is not None and following.operator == "(":
                    self.at = self.closing(self.at - 1, "(", ")") + 1
                elif (
                    following is not None and following.operator is not None and self.is_redirection(following.operator)
                ):
                    self.skip_substitution()
                continue
            yield token

    def is_redirection(self, operator: str) -> bool:
        """Whether an operator redirects to or from a file."""
        return operator not in ("&&", "&", HERE_STRING) and (operator[0] in "<>&" or operator[0].isdigit())

    def skip_substitution(self) -> None:
        """Skip the ``(command)`` of ``< <(command)``."""
        if self.text.startswith("(", self.at):
            self.forward(self.closing(self.at, "(", ")") + 1)

    def token(self) -> ShellToken | None:
        """Read a word or an operator; None at the end."""
        self.space()
        if self.at >= len(self.text):
            return None
        line = self.line
        self.budget.spend(1, self.name)
        if operator := OPERATORS.match(self.text, self.at):
            self.forward(operator.end())
            return ShellToken(line, operator=operator[0])
        chunks: list[ShellChunk] = []
        self.parts = 0
        while self.at < len(self.text) and not self.text[self.at].isspace():
            if self.text[self.at] in "&|;<>()" and OPERATORS.match(self.text, self.at):
                if self.text[self.at] == "(" and chunks and ARRAY.fullmatch(chunks[-1].text) and not chunks[-1].quoted:
                    return ShellToken(line, tuple(chunks), array=self.array(line))
                break
            self.part(chunks)
        return ShellToken(line, tuple(chunks))

    def array(self, line: int) -> tuple[ShellToken, ...]:
        """Read the words of ``( … )`` from its opening bracket on. line: of the assignment, for the error."""
        self.forward(self.at + 1)
        self.arrays += 1
        if self.arrays > DEEPEST:
            raise CkptcheckError(f"{self.name}:{line} its arrays are nested too deeply")
        items: list[ShellToken] = []
        while (token := self.token()) is not None:
            if token.operator == ")":
                self.arrays -= 1
                return tuple(items)
            if token.operator is None:
                items.append(token)
        raise CkptcheckError(f"{self.name}:{line} an array's ( is never closed")

    def part(self, chunks: list[ShellChunk]) -> None:
        """Read one part of a word and add it to the chunks. Raises CkptcheckError for a word of more than `MOST_PARTS`."""
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise CkptcheckError(f"{self.name}:{self.line} a word has more than {MOST_PARTS:,} parts")
        sign = self.text[self.at]
        if self.text.startswith(("\\\n", "\\\r\n"), self.at):
            # The word continues in the next line, unless that begins with a blank.
            self.forward(self.text.index("\n", self.at) + 1)
        elif sign == "\\":
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
        parts: list[str] = []
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                self.add(chunks, "".join(parts), quoted=True)
                self.forward(self.at + 1)
                return
            if sign == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                parts.append("" if escaped == "\n" else escaped if escaped and escaped in '$`"\\' else sign + escaped)
                self.forward(self.at + 2)
            elif plain := IN_QUOTES.match(self.text, self.at):
                parts.append(plain[0])
                self.forward(plain.end())
            elif sign == "$" and EXPANDS.match(self.text, self.at + 1) is None:
                parts.append(sign)
                self.forward(self.at + 1)
            else:
                self.add(chunks, "".join(parts), quoted=True)
                parts.clear()
                self.dollar(chunks, quoted=True)
        raise CkptcheckError(f'{self.name}:{line} a " is never closed')

    def dollar(self, chunks: list[ShellChunk], *, quoted: bool) -> None:
        """Read ``$NAME``, ``${…}``, ``$(…)``, ``$((…))`` or backticks and add it to the chunks."""
        self.budget.spend(1, self.name)
        if self.text[self.at] == "`":
            end = self.find("`", self.at + 1)
            chunks.append(ShellChunk("command", self.text[self.at + 1 : end], quoted))
            self.forward(end + 1)
            return
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("{", "("):
            end = self.closing(self.at + 1, following, "}" if following == "{" else ")")
            kind: Literal["parameter", "command"] = "parameter" if following == "{" else "command"
            chunks.append(ShellChunk(kind, self.text[self.at + 2 : end], quoted))
            self.forward(end + 1)
        elif following == "'" and not quoted:
            # ``$'…'`` is text whose escapes no setting needs.
            self.forward(self.at + 1)
        elif name := NAME.match(self.text, self.at + 1):
            chunks.append(ShellChunk("parameter", name[0], quoted))
            self.forward(name.end())
        else:
            self.add(chunks, "$", quoted=quoted)
            self.forward(self.at + 1)

    def closing(self, at: int, opening: str, closing: str) -> int:
        """Return the position of the bracket that closes the one at `at`. Raises CkptcheckError without one.

        Brackets in quotes inside ``$(…)`` do not count.
        """
        depth, position = 0, at
        while (match := BRACKETS.search(self.text, position)) is not None:
            sign, position = match[0], match.end()
            if sign == "\\":
                position += 1
            elif sign == "'" and opening == "(":
                position = self.find("'", position) + 1
            elif sign == '"' and opening == "(":
                position = self.end_of_quotes(position)
            elif sign == opening:
                depth += 1
                if depth > DEEPEST:
                    break
            elif sign == closing:
                depth -= 1
                if depth == 0:
                    return match.start()
        raise CkptcheckError(f"{self.name}:{self.line} a {opening} is never closed")

    def end_of_quotes(self, at: int) -> int:
        """Return the position after the double quote that closes the one before `at`, beyond ``$(…)`` in between."""
        while at < len(self.text):
            sign = self.text[at]
            if sign == '"':
                return at + 1
            if sign == "$" and self.text.startswith("(", at + 1):
                self.nested += 1
                if self.nested > DEEPEST:
                    break
                at = self.closing(at + 1, "(", ")") + 1
                self.nested -= 1
            else:
                at += 2 if sign == "\\" else 1
        raise CkptcheckError(f'{self.name}:{self.line} a " is never closed')

    def find(self, sign: str, at: int) -> int:
        """Return the position of the next `sign` from `at` on. Raises CkptcheckError without one."""
        position = self.text.find(sign, at)
        if position < 0:
            raise CkptcheckError(f"{self.name}:{self.line} a {sign} is never closed")
        return position

    def add(self, chunks: list[ShellChunk], text: str, *, quoted: bool = False) -> None:
        """Add plain text: to the last chunk if that is text with the same quoting, else as a new chunk."""
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

    def document(self, end_word: str, is_quoted: bool) -> ShellToken:
        """Read the lines of a here-document up to the one with its delimiter. is_quoted: the shell does not expand it."""
        line, lines = self.line, []
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            written = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.forward(len(self.text) if end < 0 else end + 1)
            if written.strip("\t \r") == end_word:
                break
            lines.append(written)
        chunk = ShellChunk("text", "\n".join(lines), is_quoted)
        return ShellToken(line, (chunk,), operator=HERE_DOCUMENT)

    def forward(self, to: int) -> None:
        """Move to a position, and count the lines on the way."""
        self.line += self.text.count("\n", self.at, to)
        self.at = min(to, len(self.text))
