"""Finds the command of a shell script that starts a job: among its commands, and in the texts that it gives to other shells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import launch, yaml_file
from ckptcheck.jobs.document import Document, Leaf, LostArguments, Refusal, read_text_file
from ckptcheck.jobs.files import YAML, JobFiles
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.launch_command import CONFIG_FILE, find_crowded_gpus, read_engine_command, read_launch_command
from ckptcheck.jobs.python_source.python_job import read_python_job
from ckptcheck.jobs.shell import script as shell_script
from ckptcheck.jobs.shell.expansion import Script
from ckptcheck.jobs.shell.word import MARK, Command, Word

LONGEST_WORD, LONGEST_COMMAND = 400, 100_000
"""Most characters of a word, and of a command, to search for a launch: the patterns start again at every character."""
DEEPEST = 4
"""Largest depth of scripts that run each other."""
RUNNERS = ("exec", "env", "nohup", "time", "command")
"""Commands before another command."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""A variable that a command gets: ``N=8 bash run.sh``."""
LONG_WORD = re.compile(rf"(\S{{{LONGEST_WORD}}})\S++")
SHELLS = re.compile(r"(\S*/)?(bash|sh|zsh|ssh|sbatch|srun|docker|podman|kubectl|sudo|eval|cat|tee)$")
"""Programs that run, or write for another shell, the text of a here-document."""


class NoLaunch(CkptcheckError):
    """A script starts no job that ckptcheck knows."""


def read_launch_script(
    files: JobFiles, path: Path, name: str, frameworks: Mapping[str, Framework], reader: Framework | None,
    given: Sequence[Path], caller: Script | None = None, depth: int = 0,
) -> tuple[Document, Framework]:  # fmt: skip
    """Find the last command of a script that starts a job, and read its settings and the script's exports.

    Args:
        files: The job's files.
        path: The script.
        name: The script as the user names it.
        frameworks: Those to look for.
        reader: The one framework to look for; None looks for all.
        given: The files that the user names.
        caller: The arguments and exported variables with which another script runs it; None where the user does.
        depth: How many scripts run each other above it.

    Raises:
        CkptcheckError: No command starts a job, or the script cannot be read.
    """
    wanted = [reader] if reader else list(frameworks.values())
    for decide in (True, False):
        # The launch may stand under a condition that only the user's own call makes true.
        script, notes, versions = files.script(path, name, decide=decide, caller=caller)
        commands = [command for command in _list_commands(script, wanted, path.parent) if not command.is_dead]
        inner = _find_inner_script(commands, script, files, path) if depth < DEEPEST else None
        # The overrides that a wrapper passes on look like a launch.
        launches = [command for command in commands if inner is None or command is not inner[0]]
        found = _find_and_read(launches, wanted, files, path, given)
        if found is None and inner is not None:
            try:
                document, framework = read_launch_script(
                    files, inner[1], files.name(inner[1]), frameworks, reader, given, inner[2], depth + 1
                )
            except NoLaunch:
                found = _find_and_read(commands, wanted, files, path, given)
            else:
                document.sender = document.sender or _find_sender(inner[0])
                return document, framework
        if found is not None:
            break
    else:
        what = f"nothing of {reader.title}" if reader else "no training job and no engine that ckptcheck knows"
        raise NoLaunch(f"{name} starts {what}", hint=f"ckptcheck knows {', '.join(frameworks)}")
    words, document, framework = found
    document.launch, document.sender = tuple(word.text for word in words), words.sender
    document.folder = script.last_folder
    read_engine_command(commands, framework, document, files.name(path))
    exports = {
        variable: Leaf(word.text, variable, word.file or files.name(path), word.line or None, word.reason)
        for variable, word in script.exports.items()
    }
    document.environment = exports | document.environment
    document.lost = _find_lost_arguments(words, commands, files.name(path))
    document.crowded = find_crowded_gpus(script.commands, words, files.name(path))
    document.notes += notes
    document.absent += [
        Refusal(Leaf(None, word.text, word.file or files.name(path), word.line), note, note=note)
        for word, note in script.absent
    ]
    document.defaulted |= script.defaulted
    document.versions = versions | document.versions
    return document, framework


def _find_inner_script(
    commands: Sequence[Command], script: Script, files: JobFiles, path: Path
) -> tuple[Command, Path, Script] | None:
    """Return (the last command that runs a shell script, that script, what it is given): ``N=8 bash base.sh a=1``."""
    for command in reversed(commands):
        exports = dict(script.exports)
        for index, word in enumerate(command):
            if match := ASSIGNMENT.fullmatch(word.text):
                exports[match[1]] = replace(word, text=match[2], marked="")
            elif word.text.endswith((".sh", ".bash")):
                target = files.beside(word.text, path.parent) if not word.reason else None
                if target is not None and not target.samefile(path):
                    return command, target, Script(arguments=list(command[index + 1 :]), exports=exports)
                break
            elif word.text.endswith(".py") or (index == 0 and not (SHELLS.match(word.text) or word.text in RUNNERS)):
                break
    return None


def _find_and_read(
    commands: Sequence[Command], frameworks: Sequence[Framework], files: JobFiles, path: Path, given: Sequence[Path]
) -> tuple[Command, Document, Framework] | None:
    """Find the command that starts a trainer, else one that runs a Python script which does, else an engine; read it."""
    trainers = [framework for framework in frameworks if not framework.is_engine]
    engines = [framework for framework in frameworks if framework.is_engine]
    for group in (trainers, engines):
        launch_found = _find_launch(commands, group)
        if launch_found is not None:
            words, framework = launch_found
            if (parsed := _find_parsing_script(words, framework, files, path, given)) is not None:
                return words, parsed, framework
            return words, read_launch_command(words, framework, files, path, given), framework
        if group is trainers and (in_python := _find_python_launch(commands, trainers, files, path, given)) is not None:
            return in_python
        if group is trainers and (configured := _find_configured_launch(commands, trainers, files, path)) is not None:
            words, framework = configured
            return words, read_launch_command(words, framework, files, path, given), framework
    return None


def _find_launch(commands: Sequence[Command], frameworks: Sequence[Framework]) -> tuple[Command, Framework] | None:
    """Return the last command that starts one of the frameworks; their order counts first."""
    texts = [(command, _text(command)) for command in commands if not _is_argument(command[0].text)]
    for framework in frameworks:
        for command, text in reversed(texts):
            if framework.launches is not None and framework.launches.search(text):
                return command, framework
    return None


def _find_python_launch(
    commands: Sequence[Command], frameworks: Sequence[Framework], files: JobFiles, path: Path, given: Sequence[Path]
) -> tuple[Command, Document, Framework] | None:
    """Read the Python script of the last command that runs one which builds a configuration. path: the shell script's."""
    for command in reversed(commands):
        for word in command:
            script = files.beside(word.text, path.parent) if word.text.endswith(".py") and not word.reason else None
            if script is not None and (found := read_python_job(script, files.name(script), files, frameworks)):
                document, framework = found
                document.is_in_code = not document.takes_flags
                if document.takes_flags:
                    document = _add_flags(document, command, framework, files, path, given)
                return command, document, framework
    return None


def _find_parsing_script(
    words: Command, framework: Framework, files: JobFiles, path: Path, given: Sequence[Path]
) -> Document | None:
    """Read the Python script of a launch line with the line's flags, if it parses them into a configuration that it changes."""
    for word in words if framework.read_python is not None else ():
        script = files.beside(word.text, path.parent) if word.text.endswith(".py") and not word.reason else None
        try:
            found = read_python_job(script, files.name(script), files, [framework]) if script is not None else None
        except CkptcheckError:
            continue
        if found is not None and found[0].takes_flags:
            return _add_flags(found[0], words, framework, files, path, given)
    return None


def _add_flags(
    document: Document, words: Command, framework: Framework, files: JobFiles, path: Path, given: Sequence[Path]
) -> Document:
    """Return the settings of a launch line, and over them those that its script sets after it has parsed them."""
    flags = read_launch_command(words, framework, files, path, given)
    started = flags.script
    flags.update(document)
    flags.takes_flags, flags.script = "", f"{started} {document.script}"
    return flags


def _find_configured_launch(
    commands: Sequence[Command], frameworks: Sequence[Framework], files: JobFiles, path: Path
) -> tuple[Command, Framework] | None:
    """Return the last command with ``--config FILE`` whose file has the keys of one framework: a program of the user's own."""
    for command in reversed(commands):
        name = launch.option(command, *CONFIG_FILE)
        file = files.beside(name.text, path.parent) if name is not None and not name.reason else None
        if file is None or file.suffix not in YAML:
            continue
        try:
            document = yaml_file.read(read_text_file(file, files.name(file)), files.name(file))
        except CkptcheckError:
            continue
        claims = [framework for framework in frameworks if framework.style == "hydra" and framework.matches(document)]
        if len(claims) == 1:
            return command, claims[0]
    return None


def _is_argument(text: str) -> bool:
    """Whether a command begins with a flag or an override, so that it is the rest of a line that ended too early."""
    override = launch.OVERRIDE.fullmatch(text)
    return bool(launch.FLAG.match(text) or (override and ("." in override[2] or override[1])))


def _text(command: Command) -> str:
    """Return the text in which a launch is looked for."""
    return " ".join(word.text[:LONGEST_WORD] for word in command)[:LONGEST_COMMAND]


def _list_commands(script: Script, frameworks: Sequence[Framework], folder: Path) -> list[Command]:
    """Return the commands of a script, and those in texts that it gives to another shell: ``bash -c "…"``, here-documents."""
    patterns = [framework.launches for framework in frameworks if framework.launches is not None]
    return [*script.commands, *_list_inner_commands(script, patterns, folder)]


def _list_inner_commands(script: Script, patterns: Sequence[re.Pattern[str]], folder: Path) -> Iterator[Command]:
    """Yield the commands in texts that the script gives to another shell: ``bash -c "…"``, ``eval …``, here-documents."""
    for command in list(script.commands):
        texts = [
            (word.with_marks, word) for word in command if " " in word.text and not launch.OVERRIDE.fullmatch(word.text)
        ]
        if command[0].text == "eval" and len(command) > 1:
            texts = [(" ".join(word.with_marks for word in command[1:]), command[1])]
        if command.document and SHELLS.match(command[0].text):
            texts.append((command.document, replace(command[0], line=command.document_line, reason="")))
        for text, place in texts:
            if len(text) > LONGEST_COMMAND:
                continue
            # The patterns search every word from each character on, which takes quadratic time.
            searched = LONG_WORD.sub(r"\1", text)
            if any(pattern.search(searched) for pattern in patterns):
                for inner in _read_inner_commands(text, place, script, folder, is_dead=command.is_dead):
                    inner.sender = _find_sender(command)
                    yield inner


def _find_sender(command: Command) -> str:
    """Return the name of the program of a command that gives something to another shell."""
    return next((word.text.rpartition("/")[2] for word in command if not ASSIGNMENT.fullmatch(word.text)), "")


def _read_inner_commands(text: str, place: Word, script: Script, folder: Path, *, is_dead: bool) -> Iterator[Command]:
    """Yield the commands of a text that another shell reads. place: the word that has the text, with its reason."""
    inner = Script(variables=dict(script.variables), given=script.given)
    try:
        shell_script.read(text, place.file, folder, follow=lambda word, into: True, into=inner, line=max(1, place.line))
    except CkptcheckError:
        return
    for command in inner.commands:
        words = Command(
            replace(word, text=word.text.replace(MARK, ""), marked=word.text, reason=word.reason or place.reason)
            if MARK in word.text
            else word
            for word in command
        )
        words.is_dead = is_dead or command.is_dead
        yield words


def _find_lost_arguments(words: Command, commands: Sequence[Command], script_name: str) -> LostArguments | None:
    """Return where the launch line ends too early: the command after it is no program, but an argument."""
    places = [index for index, command in enumerate(commands) if command is words]
    following = commands[places[0] + 1 : places[0] + 2] if places else []
    if not following or not words.end:
        return None
    first = following[0][0]
    if not _is_argument(first.text):
        return None
    written = first.text.partition("\n")[0]
    return LostArguments(script_name, words.end, words.last_line, written, following[0].begin)
