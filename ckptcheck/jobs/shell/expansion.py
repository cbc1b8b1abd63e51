"""Expands the words of a launch script: variables, arrays, defaults, arithmetic, and commands that only compute a text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import CHARACTERS, WORDS, current_budget
from ckptcheck.jobs.shell.functions import apply_pattern, evaluate, print_text
from ckptcheck.jobs.shell.lexer import ShellChunk, ShellToken, tokenize
from ckptcheck.jobs.shell.word import MARK, Command, Word

PARAMETER = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
DOLLAR = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
ARGUMENTS = ("@", "*")
LISTED = re.compile(r"^[@*]$|\[[@*]\]$")
"""Expands to the words of a list: ``$@``, ``${ARGS[@]}``."""
HOME = "~"
"""Stands for the home folder."""
MOST = 2_000_000
"""Largest number of characters that the expansion of one script may produce: a variable can double itself repeatedly."""
IGNORED_OPTIONS = ("-P", "-L", "-e", "-f", "-m", "-s", "--")
"""Options of cd, realpath and readlink that do not change what a launch script computes with them."""
DEEPEST = 8
"""Largest depth of defaults inside defaults, and of commands inside commands."""


@dataclass
class Script:
    """The commands and variables of a script and of the scripts that it sources."""

    commands: list[Command] = field(default_factory=list)
    """Each command, in the order of the script."""
    variables: dict[str, list[Word]] = field(default_factory=dict)
    """Name of a variable → its words; an array has several."""
    exports: dict[str, Word] = field(default_factory=dict)
    """Name of an exported variable → its value."""
    functions: dict[str, list[ShellToken]] = field(default_factory=dict)
    """Name of a function → its body."""
    called: set[str] = field(default_factory=set)
    """The functions that something calls."""
    arguments: list[Word] = field(default_factory=list)
    """The arguments of the script: none, unless ``set --`` sets them; of a function, while it is read."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Values that the user gives for variables of the environment."""
    defaulted: set[str] = field(default_factory=set)
    """Variables that nothing sets and that have a default: ``${NAME:-default}``."""
    missing: list[str] = field(default_factory=list)
    """One sentence for each sourced file that could not be read: it may set anything."""
    absent: list[tuple[Word, str]] = field(default_factory=list)
    """Each sourced file that is not there, and at which the script stops (``set -e``), with its sentence in `missing`."""
    folder: str | None = ""
    """The folder to which the script changed (``cd``); None where that is not known, "" where it did not."""
    last_folder: str = ""
    """The last folder to which the script changed, as it writes it."""
    stops_on_error: bool = False
    """Whether the script stops at a command that fails."""
    program: str = ""
    """The path of the script that the user starts: ``$0``, in the files that it sources too."""
    passes_arguments: list[Word] = field(default_factory=list)
    """The places where the script passes its own arguments on: ``"$@"``."""


Follow = Callable[[Word, Script], bool]
"""Reads the file that a word names into a script; returns whether it is there, or may be on another machine."""
Run = Callable[[Sequence[Word]], str | None]
"""Takes the words of a command, returns the text that it prints; None if unknown."""


class Expansion:
    """Expands the words of one file."""

    def __init__(self, name: str, folder: Path, script: Script, run: Run) -> None:
        self.name, self.folder, self.script, self.run_command = name, folder, script, run
        # The number of characters that expansion may still produce, and the depth of expansions inside each other.
        self.left, self.depth = MOST, 0
        self.budget = current_budget()

    def expand(self, token: ShellToken, *, in_test: bool = False) -> list[Word]:
        """Return the words that a token expands to: an array gives several, an unquoted variable is split at blanks.

        in_test: whether a variable that nothing sets is empty, as in a test.
        """
        words: list[Word] = []
        parts: list[Word] = []
        place, started = self.word("", token.line), False
        for chunk in token.chunks:
            pieces = (
                [self.word(chunk.text, token.line)] if chunk.kind == "text" else self.value(chunk, token.line, in_test)
            )
            if chunk.kind != "text" and not chunk.quoted:
                pieces = [part for word in pieces for part in split_at_blanks(word)]
            for number, piece in enumerate(pieces):
                if number:
                    words.append(join_parts(parts, place))
                    parts = []
                # The words of an array keep their own places.
                is_listed = len(pieces) > 1 or LISTED.search(chunk.text) is not None
                if is_listed and chunk.kind == "parameter" and piece.line and not any(part.text for part in parts):
                    place = piece
                parts.append(piece)
                started = started or bool(piece.text) or bool(piece.reason)
            started = started or (chunk.quoted and (chunk.kind == "text" or bool(pieces)) and not _is_empty_list(token))
        if started:
            words.append(join_parts(parts, place))
        self.spend(words, token.line)
        if len(token.chunks) > 1:
            words = [replace(word, is_list=False) if word.is_list else word for word in words]
        return words

    def value(self, chunk: ShellChunk, line: int, in_test: bool = False) -> list[Word]:
        """Return the words that ``$NAME``, ``${NAME:-default}``, ``${NAME[@]}`` or ``$(…)`` expands to."""
        self.budget.spend(1, self.name)
        written = chunk.text[:100].replace(MARK, "…")
        expression = clip(f"${{{written}}}" if chunk.kind == "parameter" else f"$({written})", 60)
        unknown = self.word("", line, f"{expression} is known only when the script runs")
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                return [unknown]
            if chunk.kind == "command":
                if chunk.text.startswith("(") and chunk.text.endswith(")"):
                    return [self.arithmetic(chunk.text[1:-1], line)]
                text = self.output(chunk.text, line)
                if text is None:
                    return [unknown]
                known = replace(unknown, text=text.replace(MARK, ""), marked=text if MARK in text else "")
                return [known if MARK in text else replace(known, reason="")]
            found = self.parameter(chunk, line, in_test)
            return [unknown] if found is None else found
        finally:
            self.depth -= 1

    def parameter(self, chunk: ShellChunk, line: int, in_test: bool) -> list[Word] | None:
        """Return the words of a parameter; None if unknown."""
        match = PARAMETER.fullmatch(chunk.text)
        if match is None:
            return None
        size, name, subscript, operator = match.groups()
        if chunk.text == "#":
            return [self.word(str(len(self.script.arguments)), line)]
        is_all = name in ARGUMENTS or subscript in ("[@]", "[*]")
        words = self.words_of(name, line)
        self.budget.spend(len(words or ()) // WORDS, self.name)
        if words and words[0].text == HOME and name == "HOME" and (in_test or size or operator):
            return None
        if subscript and not is_all:
            index = subscript[1:-1].strip()
            if words is None or not index.isdigit() or int(index) >= len(words):
                return None if name != "BASH_SOURCE" else words
            words = [words[int(index)]]
        if size:
            known = words is not None and not any(word.reason for word in words)
            if words is None or not known:
                return None
            return [self.word(str(len(words) if is_all else len(words[0].text) if words else 0), line)]
        if operator and (default := DEFAULT.fullmatch(operator)):
            return self.default(name, words, default, line, is_all)
        if words is None:
            if in_test:
                return [self.word("", line)]
            if is_all and not self.script.missing:
                # For an unset list a shell passes nothing, and an environment holds no lists.
                return []
            missing = f", and {self.script.missing[-1]}" if self.script.missing else ""
            reason = f"${{{clip(chunk.text, 60)}}} is not set in the script{missing}"
            return [self.word("", line, reason, variable=name, is_list=is_all)]
        if not operator:
            return words if is_all else words[:1] or [self.word("", line)]
        if is_all and (part := re.fullmatch(r":(\d+)", operator)):
            # Arguments count from 1, the words of an array from 0.
            return words[max(0, int(part[1]) - (name in ARGUMENTS)) :]
        if is_all or not words or words[0].reason:
            return None if not words or not words[0].reason else words[:1]
        changed = apply_pattern(words[0].text, self.plain_operator(operator))
        return None if changed is None else [replace(words[0], text=changed, marked="")]

    def plain_operator(self, operator: str) -> str:
        """Return an operator such as ``%$SUFFIX`` with the known variables in it replaced."""

        def insert(match: re.Match[str]) -> str:
            words = self.words_of(match[1] or match[2], 0)
            return words[0].text if words and not words[0].reason else match[0]

        return DOLLAR.sub(insert, operator)

    def default(self, name: str, words: list[Word] | None, match: re.Match[str], line: int, is_all: bool) -> list[Word]:
        """Return the words of ``${NAME:-default}``, ``${NAME:=default}``, ``${NAME:+other}`` or ``${NAME:?message}``."""
        colon, sign, text = match.groups()
        is_set = words is not None and (not colon or any(word.text or word.reason for word in words))
        if sign == "+":
            return self.text_words(text, line) if is_set else []
        if is_set and words is not None:
            return words if is_all else words[:1] or [self.word("", line)]
        if sign == "?":
            reason = f"${{{name}}} is not set in the script"
            return [self.word("", line, reason, variable=name)]
        if words is None:
            self.script.defaulted.add(name)
        found = self.text_words(text, line)
        if sign == "=":
            self.script.variables[name] = found
        return found

    def text_words(self, text: str, line: int) -> list[Word]:
        """Return the text of a default as one word."""
        tokens = [token for token in tokenize(text, self.name, line) if token.operator is None]
        words = [word for token in tokens for word in self.expand(token)]
        return [_join_with_blanks(words, self.word("", line))]

    def words_of(self, name: str, line: int) -> list[Word] | None:
        """Return the words of a variable or of a special parameter; None if nothing sets it."""
        if name in ARGUMENTS:
            if not self.script.arguments:
                self.script.passes_arguments.append(self.word("", line))
            return self.script.arguments
        if name == "0" and self.script.program:
            return [self.word(self.script.program, line)]
        if name in ("0", "BASH_SOURCE"):
            return [self.word(str(self.folder / Path(self.name).name), line)]
        if name.isdigit():
            if int(name) <= len(self.script.arguments):
                return [self.script.arguments[int(name) - 1]]
            return [self.word(self.script.given[name], line)] if name in self.script.given else None
        if name in self.script.given:
            return [self.word(self.script.given[name], line)]
        if name in self.script.variables:
            return self.script.variables[name]
        if name == "HOME":
            # What reads a path expands it; the variable itself is not read, as no other of ckptcheck's environment is.
            return [self.word(HOME, line)]
        if name == "PWD":
            return [self.word(".", line)]
        return None

    def output(self, text: str, line: int) -> str | None:
        """Return the output of the command in ``$(…)``, without running it; None if unknown."""
        folder, printed = "", None
        command: list[Word] = []
        piped: str | None = None
        for token in [*tokenize(text.strip(), self.name, line), ShellToken(line, operator="\n")]:
            if token.operator is None:
                command += self.expand(token)
                continue
            if token.operator not in ("&&", ";", "\n", "|") or any(word.reason for word in command):
                return None
            if not command:
                continue
            words = [word.text for word in command if word.text not in IGNORED_OPTIONS]
            if not words:
                return None
            if words[0] in ("cd", "pushd") and len(words) == 2:
                folder, printed = posixpath.join(folder, words[1]), ""
            elif words[0] == "pwd":
                printed = posixpath.normpath(folder) if folder else "."
            else:
                found = print_text(words, piped)
                printed = self.run_command(command) if found is None and piped is None else found
            if printed is None:
                return None
            piped = printed if token.operator == "|" else None
            command = []
        return printed

    def arithmetic(self, text: str, line: int) -> Word:
        """Return the value of ``$((A * 1024))``, with a reason if a variable in it is unknown."""

        def read_variable(name: str) -> str | None:
            words = self.words_of(name, line)
            return words[0].text if words and len(words) == 1 and not words[0].reason else None

        value = evaluate(DOLLAR.sub(r"\1\2", text), read_variable)
        if value is None:
            return self.word("", line, f"$(({clip(text, 60)})) is known only when the script runs")
        return self.word(str(value), line)

    def joined(self, token: ShellToken) -> Word:
        """Expand a word without splitting it at blanks, as in an assignment."""
        words = self.expand(replace(token, chunks=tuple(replace(chunk, quoted=True) for chunk in token.chunks)))
        return _join_with_blanks(words, self.word("", token.line))

    def word(self, text: str, line: int, reason: str = "", *, variable: str = "", is_list: bool = False) -> Word:
        """Make a word of this file."""
        return Word(text, line, reason, self.name, variable, is_list)

    def spend(self, words: Sequence[Word], line: int) -> None:
        """Count words that expansion produces. Raises CkptcheckError beyond `MOST` characters, or the budget."""
        characters = sum(len(word.text) + len(word.marked) + 1 for word in words)
        self.budget.spend(1 + len(words) // 2 + characters // CHARACTERS, self.name)
        self.left -= characters
        if self.left < 0:
            raise CkptcheckError(f"{self.name}:{line} its variables grow beyond {MOST:,} characters")


def _is_empty_list(token: ShellToken) -> bool:
    """Whether a word is only a list: ``"$@"`` and ``"${A[@]}"`` give no word if the list is empty."""
    texts = [chunk for chunk in token.chunks if chunk.kind != "text" or chunk.text]
    return len(texts) == 1 and texts[0].kind == "parameter" and (texts[0].text[:1] == "@" or "[@]" in texts[0].text)


def split_at_blanks(word: Word) -> list[Word]:
    """Split a word as the shell splits an unquoted variable."""
    parts = word.with_marks.split()
    if len(parts) < 2:
        text, marked = word.text.strip(), word.marked.strip()
        # Most words have no blanks, and copying a word costs as much as three steps of the budget.
        return [word if (text, marked) == (word.text, word.marked) else replace(word, text=text, marked=marked)]
    return [_unmark(word, part) for part in parts]


def _unmark(word: Word, marked: str) -> Word:
    """Return a word with a part of its marked text; the reason stays where the part has a mark, or the text has none."""
    has_marks = MARK in word.with_marks
    is_known = has_marks and MARK not in marked
    reason, variable = ("", "") if is_known else (word.reason, word.variable)
    return Word(
        marked.replace(MARK, ""), word.line, reason, word.file, variable, marked=marked if MARK in marked else ""
    )


def join_parts(parts: Sequence[Word], place: Word) -> Word:
    """Join the parts of one word."""
    if len(parts) == 1:
        return _move(parts[0], place)
    unknown = next((part for part in parts if part.reason), None)
    text = "".join(part.text for part in parts)
    if unknown is None:
        return replace(place, text=text, reason="", variable="", marked="", is_list=False)
    marked = "".join(part.with_marks for part in parts)
    return replace(
        place, text=text, reason=unknown.reason, variable=unknown.variable, marked=marked if MARK in marked else "",
        is_list=False,
    )  # fmt: skip


def _move(word: Word, place: Word) -> Word:
    """Return a word with the line and file of another one."""
    if (word.line, word.file) == (place.line, place.file):
        return word
    return replace(word, line=place.line, file=place.file)


def _join_with_blanks(words: Sequence[Word], place: Word) -> Word:
    """Join words to one, with blanks between them."""
    if len(words) == 1:
        return words[0] if words[0].line == place.line else replace(words[0], line=place.line)
    separated: list[Word] = []
    for word in words:
        separated += [replace(place, text=" "), word] if separated else [word]
    return join_parts(separated, place) if separated else place
