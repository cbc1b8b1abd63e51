"""Finds the command that starts a job in a Python script: a text or list that it gives to a function which runs commands.

slime and miles have one function for this, ``execute_train(train_args=…, megatron_model_type=…, extra_env_vars=…)``
(slime/utils/external_utils/command_utils.py of THUDM/slime at 624b824a8, the same file of radixark/miles at 31f1ca961): it
runs train.py with the model's flags and the text in ``train_args``. Every other function counts whose argument is a command
that starts a framework: ``subprocess.run([…])``, ``os.system("…")``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.files import JobFiles
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.launch_command import read_launch_command
from ckptcheck.jobs.model_arguments import read_model_arguments
from ckptcheck.jobs.python_source.script import PythonCall, PythonScript
from ckptcheck.jobs.python_source.values import Items, Piece, Table, Text, Unknown, Value, to_plain
from ckptcheck.jobs.shell import script as shell_script
from ckptcheck.jobs.shell.expansion import Script
from ckptcheck.jobs.shell.word import MARK, Command, Word

EXECUTE = "execute_train"
NO_SETTINGS: dict[str, Value] = {EXECUTE: None, "get_default_wandb_args": Text(), "get_peft_config": None}
"""Functions that are not followed → their results: slime's and miles' own, whose flags of wandb set nothing that a rule checks, and
TRL's, which returns an adapter only where its argument has ``use_peft``."""
LONGEST = 100_000
"""Largest number of characters of a command."""


def read_python_launch(
    script: PythonScript, files: JobFiles, path: Path, frameworks: Sequence[Framework]
) -> tuple[Document, Framework] | None:
    """Read the last command with which a script starts a job; None if no framework knows one.

    Args:
        script: The script's calls.
        files: Reads configurations that the command names.
        path: The script.
        frameworks: The frameworks to look for; their order counts first.
    """
    commands = [
        (command, call)
        for call in sorted(script.calls, key=lambda call: not call.condition)
        for command in _list_commands(call, files, path)
    ]
    for framework in frameworks:
        for command, call in reversed(commands):
            text = " ".join(word.text[:400] for word in command)[:LONGEST]
            if framework.launches is not None and framework.launches.search(text):
                document = read_launch_command(command, framework, files, path, [path])
                document.environment |= _read_environment(call, files.name(path))
                if call.condition:
                    document.notes.append(
                        f"whether {call.file}:{call.line} starts the job is not known: {call.condition}"
                    )
                return document, framework
    return None


def _list_commands(call: PythonCall, files: JobFiles, path: Path) -> Iterator[Command]:
    """Yield the commands that a call may run."""
    if call.ends_with(EXECUTE):
        yield _make_train_command(call, files, path)
        return
    for value in (*call.arguments, *call.keywords.values()):
        if isinstance(value, Text):
            yield from split_text(value)
        elif isinstance(value, Items) and value.items:
            words = Command(_make_word(item, call) for item in value.items)
            yield words
            for word in words:
                if " " in word.text:
                    yield from split_text(Text((Piece(word.with_marks, word.line, word.file),)), word.reason)


def _make_train_command(call: PythonCall, files: JobFiles, path: Path) -> Command:
    """Return the command that ``execute_train`` runs: train.py, the model's flags, the flags of the call."""
    names = ("train_args", "num_gpus_per_node", "megatron_model_type", "train_script")
    given: dict[str, Value] = dict(zip(names, call.arguments, strict=False))
    given |= {str(name): value for name, value in call.keywords.items()}
    program = given.get("train_script")
    words = Command([Word("python3", call.line, file=call.file)])
    words.append(Word(program.shown if isinstance(program, Text) else "train.py", call.line, file=call.file))
    words += _list_model_words(given.get("megatron_model_type"), call, files, path)
    arguments = given.get("train_args", Unknown("train_args is not given", call.line))
    if isinstance(arguments, Text):
        words += [word for command in split_text(arguments) for word in command]
    else:
        _, reason = to_plain(arguments)
        words.append(Word("", call.line, reason or "train_args is no text", call.file, is_list=True))
    return words


def _list_model_words(kind: Value, call: PythonCall, files: JobFiles, path: Path) -> list[Word]:
    """Return the words of ``scripts/models/KIND``: a Python file of miles, a shell script of slime. One unknown word without it."""
    if kind is None:
        return []
    known = kind.known if isinstance(kind, Text) else None
    _, reason = to_plain(kind)
    if known is not None:
        for suffix in (".py", ".sh"):
            file = files.beside(f"scripts/models/{known}{suffix}", path.parent)
            if file is None:
                continue
            if suffix == ".py":
                found = read_model_arguments(file.parent, known, files, {})
                if found is not None:
                    return [word for command in split_text(found) for word in command]
            else:
                script, _, _ = files.script(file, files.name(file))
                return script.variables.get("MODEL_ARGS", [])
        reason = f"scripts/models/{known} is not here, with the model's flags"
    return [Word("", call.line, reason or "the model's type is not known", call.file, is_list=True)]


def _make_word(value: Value, call: PythonCall) -> Word:
    """Return an item of a list as a word of a command."""
    plain, reason = to_plain(value)
    if isinstance(value, Text):
        line = value.pieces[0].line if value.pieces else call.line
        marked = _mark(value)
        return Word(value.shown, line, reason, call.file, marked=marked if MARK in marked else "")
    line = value.line if isinstance(value, Unknown) and value.line else call.line
    return Word("" if reason or plain is None else str(plain), line, reason, call.file)


def split_text(text: Text, reason: str = "") -> list[Command]:
    """Split a text as a shell does, into commands whose words keep the lines of their pieces.

    reason: why marks in the text are unknown, if its pieces do not say it.
    """
    whole = _mark(text)
    if len(whole) > LONGEST:
        return []
    try:
        script = shell_script.read(whole, "", Path("."), follow=lambda word, into: True, into=Script())
    except CkptcheckError:
        return []
    places = _WordPlaces(text)
    return [Command(places.place(word, reason) for word in found) for found in script.commands]


def _mark(text: Text) -> str:
    """Return a text with a mark for each unknown part."""
    return "".join(MARK if piece.reason and not piece.text else piece.text for piece in text.pieces)


class _WordPlaces:
    """Finds the piece of a text that a word comes from; words are asked for in their order."""

    def __init__(self, text: Text) -> None:
        self.pieces = text.pieces
        self.starts: list[int] = []
        size = 0
        for piece in self.pieces:
            self.starts.append(size)
            size += len(_mark(Text((piece,))))
        self.whole = _mark(text)
        self.at = 0

    def place(self, word: Word, reason: str) -> Word:
        """Return a word with the line of its piece, and with the reasons of the pieces that it touches."""
        position = self.whole.find(word.text, self.at) if word.text else -1
        if position < 0:
            first = self.pieces[0] if self.pieces else Piece("", 0, "")
            return replace(word, line=first.line, file=first.file)
        end = self.at = position + len(word.text)
        touched = self.pieces[bisect.bisect_right(self.starts, position) - 1 : bisect.bisect_left(self.starts, end)]
        why = next((piece.reason for piece in touched if piece.reason), word.reason)
        if MARK in word.text:
            why = why or reason or "it is known only when the script runs"
        return Word(
            word.text.replace(MARK, ""), touched[0].line, why, touched[0].file,
            marked=word.text if MARK in word.text else "",
        )  # fmt: skip


def _read_environment(call: PythonCall, name: str) -> dict[str, Leaf]:
    """Return the variables that a call gives to its command: ``env={…}``, ``extra_env_vars={…}``."""
    leaves = {}
    for key in ("extra_env_vars", "env"):
        table = call.keywords.get(key)
        if isinstance(table, Table):
            for variable, value in table.slots.items():
                plain, reason = to_plain(value)
                leaves[str(variable)] = Leaf(plain, str(variable), name, call.line, reason)
    return leaves
