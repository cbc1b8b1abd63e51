"""Reads a launch script without running it: assignments, arrays, exports, and the words of each command.

The value of ``$(…)`` and ``${X%%y}``, and of a variable that is set under a condition, is not known; a `Word` that contains
one states the reason. The folder of the script is known: every script computes it in the same way, from BASH_SOURCE or $0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.arithmetic import evaluate
from ckptcheck.preflight.shell_lexer import ShellChunk, ShellToken, tokenize

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
OPENING = {"if", "for", "while", "until", "case", "select", "{", "("}
CLOSING = {"fi", "done", "esac", "}", ")"}
BETWEEN = {"then", "else", "elif", "do", "!", "time", "in"}
PARAMETER = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?-)(.*))?", re.DOTALL)
OWN_FOLDER = re.compile(r"dirname\b.*(BASH_SOURCE|\$0)", re.DOTALL)
MOST = 200_000
"""Largest number of characters that the expansion of one script may produce: a variable can double itself repeatedly."""
DOLLAR = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
ASKS_FOR_FILE = re.compile(r"(\[|\[\[|test) -[fer]")
UNDER_CONDITION = "set under a condition"


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion."""

    text: str
    """The word; parts that are not known are empty."""
    line: int
    """The line where it is written, from 1; for a word of an array, the line of the array; 0 where there is none."""
    reason: str = ""
    """Why a part of the word is not known; "" where all of it is known."""
    file: str = ""
    """The script that writes it, as the report names it."""


@dataclass
class Script:
    """The commands and variables of a script and of the scripts that it sources."""

    commands: list[list[Word]] = field(default_factory=list)
    """The words of each command, in the order of the script."""
    variables: dict[str, list[Word]] = field(default_factory=dict)
    """Name of a variable → its words; an array has several."""
    exports: dict[str, Word] = field(default_factory=dict)
    """Name of an exported variable → its value."""


Follow = Callable[[Word, Script], None]


def read(text: str, name: str, folder: Path, *, follow: Follow, into: Script | None = None) -> Script:
    """Read a script.

    Args:
        text: The text of the script.
        name: The file as the report names it.
        folder: The folder of the script.
        follow: Called with each file that the script sources, to read that file into the same `Script`.
        into: The `Script` to extend; None starts a new one.

    Raises:
        CkptcheckError: A quote or bracket is never closed, or the variables grow beyond `MOST` characters. The message
            has the line.
    """
    return _Reader(name, folder, into or Script(), follow).run(text)


class _Reader:
    """Reads the commands of one file into a `Script`."""

    def __init__(self, name: str, folder: Path, script: Script, follow: Follow) -> None:
        self.name, self.folder, self.script, self.follow = name, folder, script, follow
        # The number of characters that expansion may still produce.
        self.left = MOST
        # Whether the previous command is ``[ -f X ] &&``, so that the next one may source a file that does not exist.
        self.guarded = False

    def run(self, text: str) -> Script:
        """Read all commands of a text; return the script."""
        depth, brackets = 0, 0
        command: list[ShellToken] = []
        for token in tokenize(text, self.name):
            if token.operator is None:
                command.append(token)
                continue
            depth = max(0, depth + self.finish(command, depth + brackets))
            test = " ".join(word.bare for word in command[:2])
            self.guarded = token.operator == "&&" and ASKS_FOR_FILE.fullmatch(test) is not None
            command = []
            # Not every ) closes a subshell: a branch of a case has ) alone.
            if token.operator in ("(", ")"):
                brackets = max(0, brackets + (1 if token.operator == "(" else -1))
        self.finish(command, depth + brackets)
        return self.script

    def finish(self, command: list[ShellToken], depth: int) -> int:
        """Record one command or assignment.

        depth: the number of conditions, loops and brackets around it. Returns by how much the command changes the depth.
        """
        change = 0
        while command and (keyword := command[0].bare) in OPENING | CLOSING | BETWEEN:
            change += (keyword in OPENING) - (keyword in CLOSING)
            if keyword in ("for", "case", "select"):
                return change
            command = command[1:]
        conditional = depth + change > 0
        if command and command[0].bare in ("export", "declare", "readonly", "local", "typeset"):
            is_export = command[0].bare in ("export", "declare")
            for token in command[1:]:
                self.assign(token, conditional, exported=is_export)
            return change
        assignments: list[ShellToken] = []
        while command and (command[0].array is not None or (command[0].chunks and ASSIGNED.match(command[0].start))):
            assignments.append(command.pop(0))
        if not command:
            for token in assignments:
                self.assign(token, conditional)
            return change
        # ``X=1 command`` sets X for that command alone; the launch command is the only one whose environment is read.
        for token in assignments:
            self.assign(token, conditional, exported=True)
        words = [word for token in command for word in self.expand(token)]
        if words and words[0].text in ("source", "."):
            for word in words[1:2]:
                # ``[ -f X ] && source X`` sources nothing where X does not exist.
                if not (self.guarded and not word.reason and not Path(word.text).is_file()):
                    self.follow(word, self.script)
        elif words:
            self.script.commands.append(words)
        return change

    def assign(self, token: ShellToken, conditional: bool, *, exported: bool = False) -> None:
        """Set a variable from ``NAME=…``, ``NAME+=…`` or ``NAME=( … )``; with `exported`, export it too.

        conditional: whether a condition or loop surrounds the assignment, so that the value is not known.
        """
        match = ASSIGNED.match(token.start)
        if match is None:
            if exported and NAME.fullmatch(token.start) and token.start in self.script.variables:
                self.export(token.start, self.script.variables[token.start])
            return
        name, plus, rest = match.groups()
        if token.array is not None:
            words = [word for item in token.array for word in self.expand(item)]
        else:
            chunks = (replace(token.chunks[0], text=rest), *token.chunks[1:])
            words = [self.joined(replace(token, chunks=chunks))]
        if conditional:
            words = [replace(word, reason=word.reason or UNDER_CONDITION) for word in words]
        if plus and token.array is not None:
            words = [*self.script.variables.get(name, []), *words]
        elif plus:
            previous = " ".join(word.text for word in self.script.variables.get(name, []))
            words = [replace(words[0], text=previous + words[0].text)]
        self.spend(sum(len(word.text) + 1 for word in words), token.line)
        self.script.variables[name] = words
        if exported or name in self.script.exports:
            self.export(name, words)

    def export(self, name: str, words: list[Word]) -> None:
        """Record an exported variable with its words, joined by blanks."""
        self.script.exports[name] = (
            replace(words[0], text=" ".join(word.text for word in words)) if words else self.word("", 0)
        )

    def joined(self, token: ShellToken) -> Word:
        """Expand a word without splitting it at blanks, as in an assignment."""
        words = self.expand(replace(token, chunks=tuple(replace(chunk, quoted=True) for chunk in token.chunks)))
        reason = next((word.reason for word in words if word.reason), "")
        return self.word(" ".join(word.text for word in words), token.line, reason)

    def expand(self, token: ShellToken) -> list[Word]:
        """Return the words that a token expands to: an array gives several, an unquoted variable is split at blanks."""
        words: list[Word] = []
        text, reason, place, started = "", "", self.word("", token.line), False
        for chunk in token.chunks:
            pieces = [self.word(chunk.text, token.line)] if chunk.kind == "text" else self.value(chunk, token.line)
            if chunk.kind != "text" and not chunk.quoted:
                pieces = [replace(word, text=part) for word in pieces for part in (word.text.split() or [""])]
            for number, piece in enumerate(pieces):
                if number:
                    words.append(replace(place, text=text, reason=reason))
                    text, reason = "", ""
                # The words of an array keep their own places.
                if not text and len(pieces) > 1:
                    place = piece
                text += piece.text
                reason = reason or piece.reason
                started = started or bool(piece.text) or chunk.quoted or bool(piece.reason)
        if started:
            words.append(replace(place, text=text, reason=reason))
        self.spend(sum(len(word.text) + 1 for word in words), token.line)
        return words

    def value(self, chunk: ShellChunk, line: int) -> list[Word]:
        """Return the words that ``$NAME``, ``${NAME:-default}``, ``${NAME[@]}`` or ``$(…)`` expands to."""
        expression = clip(f"${{{chunk.text}}}" if chunk.kind == "parameter" else f"$({chunk.text})", 60)
        if chunk.kind == "command":
            if OWN_FOLDER.search(chunk.text):
                return [self.word(str(self.folder / "..") if "/.." in chunk.text else str(self.folder), line)]
            if chunk.text.startswith("(") and chunk.text.endswith(")"):
                return [self.arithmetic(chunk.text[1:-1], line)]
            return [self.word("", line, f"{expression} is known only when the script runs")]
        match = PARAMETER.fullmatch(chunk.text)
        if match is None:
            if chunk.text.startswith("BASH_SOURCE"):
                return [self.word(str(self.folder / Path(self.name).name), line)]
            return [self.word("", line, f"{expression} is known only when the script runs")]
        name, subscript, operator, default = match.groups()
        words = self.script.variables.get(name)
        if words is not None and not (operator == ":-" and not any(word.text or word.reason for word in words)):
            return (words if subscript else words[:1]) or ([] if subscript else [self.word("", line)])
        if name == "HOME" and not operator:
            return [self.word(str(Path.home()), line)]
        if operator:
            default_words = [
                word for token in tokenize(default, self.name) if token.operator is None for word in self.expand(token)
            ]
            reason = next((word.reason for word in default_words if word.reason), "")
            return [self.word(" ".join(word.text for word in default_words), line, reason)]
        return [self.word("", line, f"{expression} is not set in the script")]

    def arithmetic(self, text: str, line: int) -> Word:
        """Return the value of ``$((A * 1024))``, with a reason where a variable in it is not known."""

        def read_variable(name: str) -> str | None:
            words = self.script.variables.get(name, [])
            return words[0].text if len(words) == 1 and not words[0].reason else None

        value = evaluate(DOLLAR.sub(r"\1\2", text), read_variable)
        if value is None:
            return self.word("", line, f"$(({clip(text, 60)})) is known only when the script runs")
        return self.word(str(value), line)

    def word(self, text: str, line: int, reason: str = "") -> Word:
        """Make a word of this file."""
        return Word(text, line, reason, self.name)

    def spend(self, characters: int, line: int) -> None:
        """Count characters that expansion produces. Raises CkptcheckError beyond `MOST`."""
        self.left -= characters
        if self.left < 0:
            raise CkptcheckError(f"{self.name}:{line} its variables grow beyond {MOST:,} characters")
