"""Reads a launch script without running it: assignments, arrays, exports, functions, conditions, and the words of each command.

ckptcheck decides a condition that depends only on the script's own variables; values under any other condition have the
reason `UNDER_CONDITION`. The folder of the script is known: every script computes it from BASH_SOURCE or $0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.shell.condition import decide_test
from ckptcheck.jobs.shell.expansion import Expansion, Follow, Run, Script, join_parts, split_at_blanks
from ckptcheck.jobs.shell.lexer import DOCUMENT_FOLLOWS, HERE_DOCUMENT, HERE_STRING, ShellChunk, ShellToken, tokenize
from ckptcheck.jobs.shell.word import Command, Word
from ckptcheck.text.file_io import expand_home

__all__ = ["Command", "Follow", "Script", "Word", "read"]

NAME = re.compile(r"[A-Za-z_]\w*")
FUNCTION_NAME = re.compile(r"[A-Za-z_][\w:.-]*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
UNDER_CONDITION = "set under a condition"
GPUS = "CUDA_VISIBLE_DEVICES"
DECLARING = ("export", "declare", "readonly", "local", "typeset")
STARTERS = ("[", "[[", "test", "true", "false", ":", "getopts")
"""Commands that are true or false without running anything."""
MOST_STEPS = 50_000
"""Words and operators of functions that are read beyond the script's own: functions can call each other forever."""
DEEPEST = 8
"""Largest depth of functions that call each other."""
Kind = Literal["if", "case", "loop", "group"]
CLOSING: dict[str, Kind] = {"fi": "if", "esac": "case", "done": "loop", "}": "group"}


@dataclass
class _Block:
    """A condition, loop or group that is open."""

    kind: Kind
    runs: bool | None = True
    """Whether the commands inside run; None if that depends on anything outside the script."""
    was_taken: bool | None = False
    """Whether an earlier branch of the condition runs."""
    subject: Word | None = None
    """The subject of a ``case``; None for other blocks."""
    in_pattern: bool = False
    """Whether the next words are the patterns of a ``case``."""

    def take(self, holds: bool | None) -> None:
        """Begin a branch, which runs if its condition holds and no earlier branch ran."""
        free = _negate(self.was_taken)
        self.runs = False if False in (holds, free) else None if None in (holds, free) else True
        self.was_taken = (
            True if True in (self.was_taken, self.runs) else None if None in (self.was_taken, holds) else False
        )


def read(
    text: str, name: str, folder: Path, *, follow: Follow, into: Script | None = None, run: Run | None = None,
    decide: bool = True, line: int = 1, is_whole: bool = True,
) -> Script:  # fmt: skip
    """Read a script.

    Args:
        text: The text of the script.
        name: The file as the report names it.
        folder: The folder of the script.
        follow: Called with each file that the script sources, to read that file into the same `Script`.
        into: The `Script` to extend; None starts a new one.
        run: Returns what a command in ``$(…)`` prints, where that is known.
        decide: Whether conditions that depend on the script's variables alone are decided.
        line: The line of the text's first character.
        is_whole: Whether this is the whole script, so that functions which nothing has called are read at its end.

    Raises:
        CkptcheckError: A quote or bracket is never closed, or the script is too long to follow. The message has the line.
    """
    reader = _Reader(name, folder, into or Script(), follow, run or (lambda words: None), decide)
    reader.lines = text.split("\n")
    reader.first_line = line
    tokens = list(tokenize(text, name, line))
    reader.steps += len(tokens)
    reader.run(tokens)
    if is_whole:
        reader.read_uncalled_functions()
    return reader.script


class _Reader(Expansion):
    """Reads the commands of one file into a `Script`."""

    def __init__(self, name: str, folder: Path, script: Script, follow: Follow, run: Run, decide: bool) -> None:
        super().__init__(name, folder, script, run)
        self.follow, self.decide = follow, decide
        self.lines: list[str] = []
        self.first_line = 1
        self.blocks: list[_Block] = []
        # Whether the previous command was true; None if unknown. `is_test` says that it was a test.
        self.status: bool | None = True
        self.is_test = False
        # Whether the next command runs, after && or ||.
        self.gate: bool | None = True
        # The words of the last test.
        self.guard: list[Word] = []
        # Whether the command that is read asks for a here-document; the commands before it that still wait for one; and
        # the document that was met before the command was read to its end.
        self.asks_for_document = False
        self.waiting: list[Command] = []
        self.document: ShellToken | None = None
        # Whether a ``[[`` is open: its && and || split it into several commands.
        self.in_brackets = False
        self.steps, self.call_depth = MOST_STEPS, 0
        # The number of commands before the present pipe.
        self.begun = 0
        # The file that the last command sources and that is not there, with what is said of it.
        self.absent: tuple[Word, str] | None = None

    # --- tokens ---

    def run(self, tokens: Sequence[ShellToken]) -> None:
        """Read all commands of a script or of a function's body."""
        command: list[ShellToken] = []
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            self.steps -= 1
            if self.steps < 0:
                raise CkptcheckError(f"{self.name}:{token.line} its functions call each other too often to follow")
            if token.operator is None:
                if token.bare == "{" and len(command) == 2 and command[0].bare == "function":
                    at = self.define(command[1].bare, tokens, at - 1)
                    command = []
                    continue
                command.append(token)
                continue
            if token.operator == HERE_STRING:
                command.append(token)
                continue
            if token.operator == DOCUMENT_FOLLOWS:
                self.asks_for_document = True
                continue
            if token.operator == HERE_DOCUMENT:
                self.attach_document(token)
                continue
            if token.operator == "(" and self.names_function(command, tokens, at):
                at = self.define(command[-1].bare, tokens, at + 1)
                command = []
                continue
            if token.operator in ("|", ")"):
                command = self.begin_case(command)
            if self.blocks and self.blocks[-1].in_pattern and token.operator in ("|", ")", "("):
                if token.operator == ")":
                    self.choose(command)
                    command = []
                continue
            self.finish(command, token.line)
            command = []
            self.after(token.operator)
        self.finish(command, tokens[-1].line if tokens else 1)
        self.after(";")

    def after(self, operator: str) -> None:
        """Decide whether the next command runs, by the operator after the last one."""
        if self.absent is not None and operator not in ("&&", "||"):
            self.script.absent.append(self.absent)
        self.absent = None
        if operator == "&":
            for command in self.script.commands[self.begun :]:
                command.in_background = True
        if operator != "|":
            self.begun = len(self.script.commands)
        if operator in ("&&", "||"):
            status = self.status if self.is_test else True
            wanted = None if status is None else status is (operator == "&&")
            self.gate = False if self.gate is False and operator == "&&" else wanted
            return
        self.gate = True
        if operator == "(":
            # Variables of a subshell are lost after it.
            self.blocks.append(_Block("group", None if self.runs is not False else False))
        elif operator == ")" and self.blocks and self.blocks[-1].kind == "group":
            self.blocks.pop()
        elif operator in (";;", ";&", ";;&") and self.blocks and self.blocks[-1].kind == "case":
            self.blocks[-1].runs = False
            self.blocks[-1].in_pattern = True

    @property
    def runs(self) -> bool | None:
        """Whether the current command runs; None if unknown."""
        states = [block.runs for block in self.blocks] + [self.gate]
        return False if False in states else None if None in states else True

    def names_function(self, command: list[ShellToken], tokens: Sequence[ShellToken], at: int) -> bool:
        """Whether ``(`` after these words begins a function's definition: ``name () {``."""
        following = tokens[at].operator if at < len(tokens) else None
        return bool(command) and following == ")" and FUNCTION_NAME.fullmatch(command[-1].bare) is not None

    def define(self, name: str, tokens: Sequence[ShellToken], at: int) -> int:
        """Record the body of a function; return the position after it."""
        depth, body = 0, []
        signs = ("{", "}") if at < len(tokens) and tokens[at].operator != "(" else ("(", ")")
        while at < len(tokens):
            token = tokens[at]
            at += 1
            sign = token.operator or token.bare
            depth += (sign == signs[0]) - (sign == signs[1])
            if depth == 0 and sign == signs[1]:
                break
            if depth > 0:
                body.append(token)
        self.script.functions[name] = body[1:]
        return at

    def read_uncalled_functions(self) -> None:
        """Read the functions that nothing calls: their commands may be the job's."""
        self.blocks = [_Block("group", None)]
        for name in [name for name in self.script.functions if name not in self.script.called]:
            if name not in self.script.called:
                self.call(name, [])

    def call(self, name: str, arguments: list[Word]) -> None:
        """Read the body of a function with its arguments."""
        self.script.called.add(name)
        if self.call_depth >= DEEPEST:
            return
        outer, blocks = self.script.arguments, self.blocks
        self.script.arguments, self.blocks = arguments, [_Block("group", self.runs)]
        self.call_depth += 1
        try:
            self.run(self.script.functions[name])
        finally:
            self.script.arguments, self.blocks = outer, blocks
            self.call_depth -= 1

    def attach_document(self, token: ShellToken) -> None:
        """Give a here-document to the command that asked for it first."""
        if self.waiting:
            command = self.waiting.pop(0)
            command.document, command.document_line = token.chunks[0].text, token.line
        else:
            self.document = token

    # --- commands ---

    def finish(self, command: list[ShellToken], end: int) -> None:
        """Record one command or assignment, or open or close a block. end: the line where it ends."""
        self.budget.spend(1 + len(self.blocks) // 20, self.name)
        negated = False
        begin = 0
        while begin < len(command) and (word := command[begin].bare):
            if word in ("then", "else", "elif", "do"):
                self.branch(word)
            elif word in CLOSING:
                if self.blocks and self.blocks[-1].kind == CLOSING[word]:
                    self.blocks.pop()
            elif word in ("if", "while", "until"):
                self.blocks.append(_Block("if" if word == "if" else "loop", None if word == "until" else True))
            elif word == "{":
                self.blocks.append(_Block("group"))
            elif word in ("for", "select"):
                self.loop(command[begin:])
                return
            elif word == "case":
                self.blocks.append(_Block("case", False, subject=self.subject(command[begin:]), in_pattern=True))
                return
            elif word == "!" and len(command) > begin + 1:
                negated = not negated
            elif word not in ("time", "in"):
                break
            begin += 1
        if begin < len(command):
            runs = self.runs
            if self.gate is not False:
                self.status, self.is_test = True, False
            self.command(command[begin:], end, runs)
        if negated:
            self.status = _negate(self.status)

    def branch(self, word: str) -> None:
        """Begin a branch of a condition, or the body of a loop."""
        block = next((block for block in reversed(self.blocks) if block.kind in ("if", "loop")), None)
        if block is None:
            return
        self.gate = True
        if word == "else":
            block.runs = _negate(block.was_taken)
        elif word == "elif":
            # The test of the next branch follows; it counts only if no earlier branch runs.
            block.runs = True
        elif word == "do":
            block.runs = False if self.is_test and self.status is False and self.decide else None
        else:
            block.take(self.status if self.is_test and self.decide else None)

    def loop(self, command: list[ShellToken]) -> None:
        """Begin ``for NAME in WORDS``: the variable is known if there is only one word."""
        words = [word for token in command[3:] for word in self.expand(token)]
        name = command[1].bare if len(command) > 1 else ""
        is_single = len(words) == 1 and not words[0].reason and command[0].bare == "for"
        if NAME.fullmatch(name):
            reason = f"{name} has another value in each turn of a loop"
            value = words[0] if is_single else Word("", command[0].line, reason, self.name)
            self.script.variables[name] = [value]
        self.blocks.append(_Block("loop", True))
        self.status, self.is_test = None, False

    def subject(self, command: list[ShellToken]) -> Word:
        """Return the subject of ``case SUBJECT in``."""
        words = self.expand(command[1], in_test=True) if len(command) > 1 else []
        return words[0] if len(words) == 1 else Word("", command[0].line, "" if not words else UNDER_CONDITION)

    def begin_case(self, command: list[ShellToken]) -> list[ShellToken]:
        """Open a ``case X in`` whose first pattern stands in the same line; return the words of that pattern."""
        words = [token.bare for token in command]
        if "case" not in words or "in" not in words[words.index("case") :]:
            return command
        end = words.index("in", words.index("case"))
        self.finish(command[:end], command[0].line)
        return command[end + 1 :]

    def choose(self, patterns: list[ShellToken]) -> None:
        """Begin a branch of a ``case``: it runs if one of its patterns matches and no earlier branch ran."""
        block = self.blocks[-1]
        block.in_pattern = False
        if not patterns:
            return
        if patterns[0].bare == "in":
            patterns = patterns[1:]
        subject = block.subject or Word("", 0, UNDER_CONDITION)
        answers: list[bool | None] = []
        for token in patterns:
            pattern = next(iter(self.expand(token)), Word("", token.line))
            test = [Word("[", 0), subject, Word("=", 0), pattern, Word("]", 0)]
            answers.append(decide_test(test, self.is_set) if self.decide else None)
        block.take(True if True in answers else None if None in answers else False)

    def is_set(self, name: str) -> bool:
        """Whether something sets a variable."""
        return self.words_of(name, 0) is not None

    def command(self, command: list[ShellToken], end: int, runs: bool | None) -> None:
        """Read a command that is no keyword: assignments, declarations, sourced files, tests, functions, programs."""
        conditional = runs is None
        if command[0].bare in DECLARING:
            is_export = command[0].bare in ("export", "declare")
            for token in command[1:]:
                if runs is not False:
                    self.assign(token, conditional, exported=is_export)
            return
        is_assignment = (
            token.array is not None or (token.chunks and ASSIGNED.match(token.start) is not None) for token in command
        )
        first = next((at for at, assigns in enumerate(is_assignment) if not assigns), len(command))
        assignments, command = command[:first], command[first:]
        if not command:
            for token in assignments:
                if runs is not False:
                    self.assign(token, conditional)
            return
        if self.in_brackets or command[0].bare in STARTERS:
            self.in_brackets = (self.in_brackets or command[0].bare == "[[") and command[-1].bare != "]]"
            if self.gate is False:
                return
            if command[0].bare not in STARTERS:
                command = [ShellToken(command[0].line, (ShellChunk("text", "[["),)), *command]
            words = [word for token in command if token.operator is None for word in self.expand(token, in_test=True)]
            self.is_test = True
            self.status = decide_test(words, self.is_set) if self.decide else None
            self.guard = words
            return
        here = next((at for at, token in enumerate(command) if token.operator == HERE_STRING), len(command))
        words = Command(word for token in command[:here] for word in self.expand(token))
        words.begin, words.end, words.is_dead = command[0].line, end, runs is False
        place = end - self.first_line
        words.last_line = self.lines[place] if 0 <= place < len(self.lines) else ""
        if self.asks_for_document:
            self.waiting.append(words)
            self.asks_for_document = False
            if self.document is not None:
                self.attach_document(self.document)
                self.document = None
        if not words:
            return
        self.program(words, command[here + 1 :], assignments, runs)

    def program(self, words: Command, here: list[ShellToken], assignments: list[ShellToken], runs: bool | None) -> None:
        """Read a command that starts something. here: the words of its here-string; assignments: the ones before it."""
        name = words[0].text
        if name in ("source", "."):
            for word in words[1:2]:
                # ``[ -f X ] && source X`` sources nothing if X does not exist.
                if runs is not False and not (
                    runs is None and self.asks_for_file() and not os.path.isfile(expand_home(word.text))
                ):
                    # ``source X a b`` gives X its own arguments.
                    outer = self.script.arguments
                    self.script.arguments = list(words[2:]) or outer
                    is_there = self.follow(word, self.script)
                    if words[2:]:
                        self.script.arguments = outer
                    if (
                        not is_there
                        and self.script.stops_on_error
                        and runs
                        and all(block.kind == "group" for block in self.blocks)
                    ):
                        self.absent = (word, self.script.missing[-1])
        elif name in ("read", "mapfile", "readarray") and runs is not False:
            self.read_line(words, here, assignments)
        elif name == "set" and len(words) > 1 and words[1].text == "--" and runs is not False:
            self.script.arguments = list(words[2:])
        elif name == "set" and runs:
            self.set_options([word.text for word in words[1:]])
        elif name in ("cd", "pushd", "popd") and runs is not False:
            target = os.path.join(self.script.folder or "", expand_home(words[-1].text))
            is_known = runs and len(words) > 1 and not words[-1].reason and os.path.isabs(target)
            self.script.last_folder = words[-1].text
            # A folder that is not here is one of another machine.
            self.script.folder = target if is_known and os.path.isdir(target) else None
        elif name == "shift" and runs is not False:
            self.budget.spend(len(self.script.arguments) // 100, self.name)
            self.script.arguments = self.script.arguments[1:]
        elif name == "unset" and runs:
            for word in words[1:]:
                self.script.variables.pop(word.text, None)
        elif name in self.script.functions and runs is not False:
            self.call(name, list(words[1:]))
        else:
            # ``X=1 command`` sets X for that command alone; the launch command is the only one whose environment is read.
            around = self.script.variables.get(GPUS)
            for token in assignments:
                self.assign(token, runs is None, exported=True)
            seen = self.script.variables.get(GPUS, [])
            words.runs, words.gpus = runs, None if any(word.reason for word in seen) else "".join(w.text for w in seen)
            self.script.variables.pop(GPUS, None)
            if around is not None:
                self.script.variables[GPUS] = around
            self.script.commands.append(words)

    def set_options(self, words: Sequence[str]) -> None:
        """Note whether ``set -e``, ``set -euo pipefail`` or ``set -o errexit`` makes the script stop at a command that fails."""
        for index, word in enumerate(words):
            is_named = word == "errexit" and index > 0 and words[index - 1].endswith("o")
            sign = words[index - 1] if is_named else word
            if is_named or (sign[:1] in "-+" and "e" in sign[1:]):
                self.script.stops_on_error = sign.startswith("-")

    def asks_for_file(self) -> bool:
        """Whether the last test asked whether a file exists."""
        return self.gate is None and len(self.guard) > 1 and self.guard[1].text in ("-f", "-e", "-r")

    def read_line(self, words: Command, here: list[ShellToken], assignments: list[ShellToken]) -> None:
        """Read ``read -ra NAME <<< "text"``: an array of the words of the text."""
        names = [word.text for word in words[1:] if NAME.fullmatch(word.text)]
        is_array = any(word.text.startswith("-") and "a" in word.text for word in words[1:]) or words[0].text != "read"
        reason = f"{words[0].text} gets it only when the script runs"
        unknown = replace(self.word("", words[0].line, reason), is_list=is_array)
        texts = [self.joined(token) for token in here[:1]]
        separator = next(
            (
                "".join(chunk.text for chunk in token.chunks).partition("=")[2]
                for token in assignments
                if token.start.startswith("IFS=")
            ),
            "",
        )
        for name in names:
            if not is_array or not texts:
                self.script.variables[name] = [unknown]
                continue
            text = texts[0]
            parts = [replace(text, text=text.text.replace(separator, " ")) if separator.strip() else text]
            self.script.variables[name] = self.words_in(parts[0])

    def words_in(self, word: Word) -> list[Word]:
        """Return the words of a text, as ``read -a`` splits it."""
        parts = split_at_blanks(word)
        return [replace(parts[0], is_list=True)] if len(parts) == 1 and parts[0].reason and not parts[0].text else parts

    def assign(self, token: ShellToken, conditional: bool, *, exported: bool = False) -> None:
        """Set a variable from ``NAME=…``, ``NAME+=…`` or ``NAME=( … )``; with `exported`, export it too.

        conditional: whether a condition or loop surrounds the assignment, so that the value is unknown.
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
        before = self.script.variables.get(name, [])
        if conditional and not plus and token.array is None and before and before[0] == words[0]:
            return
        if conditional:
            words = [replace(word, reason=word.reason or UNDER_CONDITION) for word in words]
        if plus and token.array is not None:
            words = [*before, *words]
        elif plus:
            words = [self.appended(before, words[0])]
        self.spend(words, token.line)
        self.script.variables[name] = words
        if exported or name in self.script.exports:
            self.export(name, words)

    def appended(self, before: list[Word], word: Word) -> Word:
        """Return the value of ``NAME+=word``."""
        return join_parts([*before, word], replace(word, text="")) if before else word

    def export(self, name: str, words: list[Word]) -> None:
        """Record an exported variable with its words, joined by blanks."""
        self.script.exports[name] = (
            replace(words[0], text=" ".join(word.text for word in words)) if words else self.word("", 0)
        )


def _negate(answer: bool | None) -> bool | None:
    return None if answer is None else not answer
