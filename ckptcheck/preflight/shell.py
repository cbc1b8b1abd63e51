"""Reads a launch script without running it: simple assignments, arrays, exports, and the commands with their words.

What a shell would have to compute (``$(…)``, ``${X%%y}``) and what is set under a condition is not known; a
word that holds some of it says so. The folder of the script itself, which every script computes alike from BASH_SOURCE
or $0, is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.arithmetic import compute
from ckptcheck.preflight.words import Chunk, Token, tokens

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
OPENING = {"if", "for", "while", "until", "case", "select", "{", "("}
CLOSING = {"fi", "done", "esac", "}", ")"}
BETWEEN = {"then", "else", "elif", "do", "!", "time", "in"}
PARAMETER = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?-)(.*))?", re.DOTALL)
OWN_FOLDER = re.compile(r"dirname\b.*(BASH_SOURCE|\$0)", re.DOTALL)
MOST = 200_000
"""Characters that expansion may make of one script, and words of it: variables can double themselves."""
DOLLAR = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
ASKS_FOR_FILE = re.compile(r"(\[|\[\[|test) -[fer]")
UNDER_CONDITION = "set under a condition"


@dataclass(frozen=True)
class Word:
    """A word of a command as the shell would see it. reason: why a part of it is not known, "" where all is.

    file, line: where it was written, which for a word of an array is where the array is.
    """

    text: str
    line: int
    reason: str = ""
    file: str = ""


@dataclass
class Script:
    """commands: their words. variables: name → words (an array has several). exports: names that are exported."""

    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    exports: dict[str, Word] = field(default_factory=dict)


Follow = Callable[[Word, Script], None]


def read(text: str, name: str, folder: Path, *, follow: Follow, into: Script | None = None) -> Script:
    """Read a script. folder: where it lies. follow: called with each file that it sources, to read that into the same Script.

    Raises CkptcheckError, with the line, for a quote or bracket that is never closed, and for variables that grow
    beyond what a launch script can mean.
    """
    return _Reader(name, folder, into or Script(), follow).run(text)


class _Reader:
    def __init__(self, name: str, folder: Path, script: Script, follow: Follow) -> None:
        self.name, self.folder, self.script, self.follow = name, folder, script, follow
        self.left = MOST
        self.guarded = False

    def run(self, text: str) -> Script:
        depth, brackets = 0, 0
        command: list[Token] = []
        for token in tokens(text, self.name):
            if token.operator is None:
                command.append(token)
                continue
            depth = max(0, depth + self.finish(command, depth + brackets))
            asked = " ".join(word.bare for word in command[:2])
            self.guarded = token.operator == "&&" and ASKS_FOR_FILE.fullmatch(asked) is not None
            command = []
            if token.operator in ("(", ")"):  # not only of subshells: a case has ) alone
                brackets = max(0, brackets + (1 if token.operator == "(" else -1))
        self.finish(command, depth + brackets)
        return self.script

    def finish(self, command: list[Token], depth: int) -> int:
        """Take in one command; return by how much it opens or closes conditions."""
        change = 0
        while command and (keyword := command[0].bare) in OPENING | CLOSING | BETWEEN:
            change += (keyword in OPENING) - (keyword in CLOSING)
            if keyword in ("for", "case", "select"):
                return change
            command = command[1:]
        conditional = depth + change > 0
        if command and command[0].bare in ("export", "declare", "readonly", "local", "typeset"):
            exported = command[0].bare in ("export", "declare")
            for token in command[1:]:
                self.assign(token, conditional, exported=exported)
            return change
        own: list[Token] = []
        while command and (command[0].array is not None or (command[0].chunks and ASSIGNED.match(command[0].start))):
            own.append(command.pop(0))
        if not command:
            for token in own:
                self.assign(token, conditional)
            return change
        for token in own:  # X=1 command: for that command alone, which is the one that matters here
            self.assign(token, conditional, exported=True)
        words = [word for token in command for word in self.expand(token)]
        if words and words[0].text in ("source", "."):
            for word in words[1:2]:
                if not (self.guarded and not word.reason and not Path(word.text).is_file()):  # [ -f X ] && source X
                    self.follow(word, self.script)
        elif words:
            self.script.commands.append(words)
        return change

    def assign(self, token: Token, conditional: bool, *, exported: bool = False) -> None:
        found = ASSIGNED.match(token.start)
        if found is None:
            if exported and NAME.fullmatch(token.start) and token.start in self.script.variables:
                self.export(token.start, self.script.variables[token.start])
            return
        name, more, rest = found.groups()
        if token.array is not None:
            words = [word for item in token.array for word in self.expand(item)]
        else:
            chunks = (replace(token.chunks[0], text=rest), *token.chunks[1:])
            words = [self.joined(replace(token, chunks=chunks))]
        if conditional:
            words = [replace(word, reason=word.reason or UNDER_CONDITION) for word in words]
        if more and token.array is not None:
            words = [*self.script.variables.get(name, []), *words]
        elif more:
            before = " ".join(word.text for word in self.script.variables.get(name, []))
            words = [replace(words[0], text=before + words[0].text)]
        self.spend(sum(len(word.text) + 1 for word in words), token.line)
        self.script.variables[name] = words
        if exported or name in self.script.exports:
            self.export(name, words)

    def export(self, name: str, words: list[Word]) -> None:
        self.script.exports[name] = (
            replace(words[0], text=" ".join(word.text for word in words)) if words else self.word("", 0)
        )

    def joined(self, token: Token) -> Word:
        """Expand without splitting, as in an assignment."""
        words = self.expand(replace(token, chunks=tuple(replace(chunk, quoted=True) for chunk in token.chunks)))
        reason = next((word.reason for word in words if word.reason), "")
        return self.word(" ".join(word.text for word in words), token.line, reason)

    def expand(self, token: Token) -> list[Word]:
        """The words that a token becomes: an array gives several, an unquoted variable is split at spaces."""
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
                if not text and len(pieces) > 1:  # of an array: each word has a place of its own
                    place = piece
                text += piece.text
                reason = reason or piece.reason
                started = started or bool(piece.text) or chunk.quoted or bool(piece.reason)
        if started:
            words.append(replace(place, text=text, reason=reason))
        self.spend(sum(len(word.text) + 1 for word in words), token.line)
        return words

    def value(self, chunk: Chunk, line: int) -> list[Word]:
        """What ``$NAME``, ``${NAME:-default}``, ``${NAME[@]}`` or ``$(…)`` stand for."""
        unknown = clipped(f"${{{chunk.text}}}" if chunk.kind == "parameter" else f"$({chunk.text})", 60)
        if chunk.kind == "command":
            if OWN_FOLDER.search(chunk.text):
                return [self.word(str(self.folder / "..") if "/.." in chunk.text else str(self.folder), line)]
            if chunk.text.startswith("(") and chunk.text.endswith(")"):
                return [self.arithmetic(chunk.text[1:-1], line)]
            return [self.word("", line, f"{unknown} would have to be run")]
        found = PARAMETER.fullmatch(chunk.text)
        if found is None:
            if chunk.text.startswith("BASH_SOURCE"):
                return [self.word(str(self.folder / Path(self.name).name), line)]
            return [self.word("", line, f"{unknown} would have to be run")]
        name, many, given, default = found.groups()
        words = self.script.variables.get(name)
        if words is not None and not (given == ":-" and not any(word.text or word.reason for word in words)):
            return (words if many else words[:1]) or ([] if many else [self.word("", line)])
        if name == "HOME" and not given:
            return [self.word(str(Path.home()), line)]
        if given:
            inner = [
                word for token in tokens(default, self.name) if token.operator is None for word in self.expand(token)
            ]
            reason = next((word.reason for word in inner if word.reason), "")
            return [self.word(" ".join(word.text for word in inner), line, reason)]
        return [self.word("", line, f"{unknown} is not set in it")]

    def arithmetic(self, text: str, line: int) -> Word:
        """What ``$((A * 1024))`` comes to, where all of it is known."""

        def known(name: str) -> str | None:
            words = self.script.variables.get(name, [])
            return words[0].text if len(words) == 1 and not words[0].reason else None

        value = compute(DOLLAR.sub(r"\1\2", text), known)
        if value is None:
            return self.word("", line, f"$(({clipped(text, 60)})) would have to be run")
        return self.word(str(value), line)

    def word(self, text: str, line: int, reason: str = "") -> Word:
        return Word(text, line, reason, self.name)

    def spend(self, characters: int, line: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise CkptcheckError(f"{self.name}:{line} its variables grow beyond {MOST:,} characters")
