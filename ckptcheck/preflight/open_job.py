"""Reads the files and overrides that the user names into a `Job`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Section
from ckptcheck.preflight import launch
from ckptcheck.preflight.commands import suggest_commands
from ckptcheck.preflight.dated_defaults import DatedDefaults, FrameworkVersion, date_by_removed_keys, load_table
from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.engine_flags import SHORT, apply_engine_defaults
from ckptcheck.preflight.files import SHELL, TOML, YAML, JobFiles, find_environment
from ckptcheck.preflight.framework import Framework, environment_flag, fill_job
from ckptcheck.preflight.framework_version import find_framework_version
from ckptcheck.preflight.hydra_launch import compose_launch
from ckptcheck.preflight.job import Job, UnknownKey
from ckptcheck.preflight.model_defaults import apply_model_defaults
from ckptcheck.preflight.named_checkpoints import scan_named_checkpoints
from ckptcheck.preflight.python_job import read_python_job, require_python_job
from ckptcheck.preflight.readers import (
    areal,
    engine_line,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    pipelinerl,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    verl,
)
from ckptcheck.preflight.shell_lexer import tokenize
from ckptcheck.preflight.shell_script import Script, Word
from ckptcheck.preflight.this_machine import Probe, look_at_machine
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import join_truncated

FRAMEWORKS: dict[str, Framework] = {
    reader.name: reader
    for reader in (
        skyrl.FRAMEWORK, verl.FRAMEWORK, slime.FRAMEWORK, nemo_rl.FRAMEWORK, pipelinerl.FRAMEWORK, roll.FRAMEWORK,
        prime_rl.FRAMEWORK, trl.FRAMEWORK, openrlhf.FRAMEWORK, ms_swift.FRAMEWORK, areal.FRAMEWORK, open_instruct.FRAMEWORK,
        engine_line.VLLM, engine_line.SGLANG,
    )
}  # fmt: skip
CONFIG_FILE = ("--config", "--config-file")
CONFIG_NAME = ("--config-name", "--config_name", "-cn")
CONFIG_PATH = ("--config-path", "--config_path", "-cp", "--config-dir")
ENGINE_LINES = (engine_line.VLLM, engine_line.SGLANG)
PROGRAM = re.compile(r"(\S*\.py|\S*launch_server|\S*api_server|serve|(^|\S*/)rl)$")


def open_job(
    arguments: Sequence[str],
    *,
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    scan: bool = True,
    here: Probe | None = None,
) -> Job:
    """Read a job.

    Args:
        arguments: The job's files, and overrides ``key=value`` that replace values of the files.
        framework: A key of `FRAMEWORKS`; None recognises the framework by the keys or the launch line.
        engine_version: The engine's version; "" takes the version that a file pins.
        te_version: The version of Transformer Engine; "" takes the version that a file pins.
        framework_version: The framework's release, or the date of a commit; "" takes the version that a file pins.
        scan: Whether to scan the checkpoints that the job names.
        here: Asks the system of this machine for what the job needs of it; None does not look.

    Raises:
        CkptcheckError: A file cannot be read or belongs to no framework. The message has file and line where possible.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise CkptcheckError(f"there is no framework {clip(framework)}", hint=f"there is {', '.join(FRAMEWORKS)}")
    names, overrides = _split_arguments(arguments)
    if not names:
        raise CkptcheckError("no configuration is named", hint="name the job's .yaml, .toml or .sh file")
    paths = [Path(expand_home(name)) for name in names]
    files = JobFiles(paths[0])
    document, reader = _read_document(files, paths, names, framework)
    if reader is None:
        reader = _recognize_framework(document, names[0])
    document.budget = files.budget
    _apply_overrides(document, overrides, reader)
    document.environment |= find_environment(document)
    job = Job(target=names[0], framework=reader.title, notes=document.notes, files=tuple(files.read))
    job.is_incomplete, job.replaced = document.is_incomplete, document.replaced
    job.refusals = [refusal for refusal in document.refusals if refusal.leaf.file] if reader.is_hydra else []
    _set_defaults(job, document, reader, framework_version, paths[0].parent)
    fill_job(job, document, reader)
    _set_versions(job, document, engine_version, te_version)
    for name, variable in (("dump.on", "DUMP_ON"), ("dump.prompts_only", "PROMPTS_ONLY")):
        if (setting := environment_flag(document, variable)).status != "unknown":
            job.settings[name] = setting
    if job.engine == "vllm" and (setting := environment_flag(document, "VLLM_BATCH_INVARIANT")).status != "unknown":
        job.settings["engine.deterministic"] = setting
    apply_engine_defaults(job)
    if scan:
        scan_named_checkpoints(job, paths[0].parent)
        apply_model_defaults(job)
    if here is not None:
        job.machine = look_at_machine(job, document, reader.name, paths[0].parent, here)
    if lines := suggest_commands(job):
        job.sections = (Section("Then, on the real engine and trainer", lines=tuple(lines)),)
    return job


def _set_defaults(job: Job, document: Document, framework: Framework, version: str, folder: Path) -> None:
    """Set the framework's dated defaults. version: the user's word for it; folder: that of the job's first file."""
    table = load_table(framework.fork(document, folder)) or load_table(framework.name)
    if table is None:
        return
    job.framework = table.title
    if version:
        named = FrameworkVersion(version.removeprefix("v"))
        if not named.is_known:
            raise CkptcheckError(
                f"{clip(version)} is no version of {table.title}",
                hint="write a release, 0.7.1, or the date of a commit, 2026-06-05",
            )
    else:
        named = find_framework_version(table, [folder / file for file in job.files], folder)
    if not named.is_known:
        places = {
            key: f"{leaf.file or 'the command line'}:{leaf.line or ''}".rstrip(":")
            for key, leaf in document.leaves.items()
        }
        dated = date_by_removed_keys(table, places)
        named = dated if dated.is_known else named
    job.defaults = DatedDefaults(table, named, document.script)


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into (files, overrides). An override has the form of one, and no file has its name."""
    names: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        match = launch.OVERRIDE.fullmatch(argument) or launch.REMOVAL.fullmatch(argument)
        (overrides if match and not Path(argument).exists() else names).append(argument)
    return names, overrides


def _read_document(
    files: JobFiles, paths: Sequence[Path], names: Sequence[str], framework: str | None
) -> tuple[Document, Framework | None]:
    """Read all files into one document; a later file replaces values of an earlier one.

    Returns (document, framework); the framework is None where neither the caller nor a launch line names it.
    """
    whole = Document()
    reader = FRAMEWORKS.get(framework or "")
    is_split = len(paths) > 1 and all(path.suffix in TOML for path in paths)
    for path, name in zip(paths, names, strict=True):
        if path.suffix in YAML + TOML:
            part = files.document(path, name)
            section = (
                next((section for prefix, section in prime_rl.PARTS.items() if path.stem.startswith(prefix)), "")
                if is_split
                else ""
            )
            for key, leaf in part.leaves.items():
                whole.put(f"{section}.{key}" if section else key, leaf)
            whole.environment |= part.environment
            whole.versions |= part.versions
            whole.notes += part.notes
            whole.is_incomplete |= part.is_incomplete
            whole.refusals += part.refusals
        elif path.suffix in SHELL:
            script, notes, versions = files.script(path, name)
            part, reader = _read_launch_script(script, files, path, name, reader)
            part.notes += notes
            part.versions = versions | part.versions
            whole.update(part)
        elif path.suffix == ".py":
            part, reader = require_python_job(path, name, files, [reader] if reader else FRAMEWORKS.values())
            whole.update(part)
        else:
            raise CkptcheckError(
                f"{name} is neither YAML, TOML, a shell script nor Python",
                hint="known are .yaml, .yml, .toml, .sh and .py",
            )
    return whole, reader


def _recognize_framework(document: Document, name: str) -> Framework:
    """Return the one framework whose keys the document has. name: the file, for messages. Raises CkptcheckError."""
    candidates = [framework for framework in FRAMEWORKS.values() if framework.matches(document)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CkptcheckError(
            f"{name} could be of {' or '.join(framework.title for framework in candidates)}",
            hint="say which with --framework",
        )
    sections = list(dict.fromkeys(key.partition(".")[0] for key in document.leaves))
    raise CkptcheckError(
        f"{name} does not have the keys of any framework that ckptcheck knows:"
        f" {join_truncated([clip(key, 40) for key in sections], 5) or 'none'}",
        hint=f"say which with --framework: {', '.join(FRAMEWORKS)}",
    )


def _read_launch_script(
    script: Script, files: JobFiles, path: Path, name: str, reader: Framework | None
) -> tuple[Document, Framework]:
    """Find the last command of a script that starts a job, and read its settings and the script's exports.

    reader: the framework to look for; None looks for all. Raises CkptcheckError where no command starts a job.
    """
    frameworks = [reader] if reader else list(FRAMEWORKS.values())
    quoted_commands = (quoted for command in script.commands for quoted in _parse_quoted_commands(command, name))
    commands = [*script.commands, *quoted_commands]
    trainers = [framework for framework in frameworks if framework not in ENGINE_LINES]
    engines = [framework for framework in frameworks if framework in ENGINE_LINES]
    found = (
        _find_launch(commands, trainers, files, path)
        or _find_python_launch(commands, trainers, files, path)
        or _find_launch(commands, engines, files, path)
    )
    if found is not None:
        words, document, framework = found
        _read_engine_command(commands, framework, document, files.name(path))
        for variable, word in script.exports.items():
            document.environment[variable] = Leaf(word.text, variable, files.name(path), word.line or None, word.reason)
        document.environment |= _read_runtime_environment(words, files, path)
        return document, framework
    what = f"nothing of {reader.title}" if reader else "no training job and no engine that ckptcheck knows"
    raise CkptcheckError(f"{name} starts {what}", hint=f"known are {', '.join(FRAMEWORKS)}")


def _find_launch(
    commands: Sequence[list[Word]], frameworks: Sequence[Framework], files: JobFiles, path: Path
) -> tuple[list[Word], Document, Framework] | None:
    """Read the last command that a framework's pattern matches, for the first framework with one. path: the script's."""
    for framework in frameworks:
        for words in reversed(commands):
            if framework.launches is not None and framework.launches.search(" ".join(word.text for word in words)):
                return words, _read_command(words, framework, files, path), framework
    return None


def _find_python_launch(
    commands: Sequence[list[Word]], frameworks: Sequence[Framework], files: JobFiles, path: Path
) -> tuple[list[Word], Document, Framework] | None:
    """Read the Python script of the last command that runs one which builds a configuration. path: the shell script's."""
    for words in reversed(commands):
        for word in words:
            script = files.beside(word.text, path.parent) if word.text.endswith(".py") and not word.reason else None
            if script is not None and (found := read_python_job(script, files.name(script), files, frameworks)):
                return words, *found
    return None


def _read_engine_command(
    commands: Sequence[list[Word]], framework: Framework, document: Document, script_name: str
) -> None:
    """Put the flags of the last command that starts the job's engine into the document, below ``server``."""
    for words in reversed(commands) if framework.engine_launches else ():
        text = " ".join(word.text for word in words)
        if framework.engine_launches is not None and framework.engine_launches.search(text):
            start = next((index for index, word in enumerate(words) if word.text.startswith("-")), len(words))
            document.engine_script = " ".join(word.text for word in words[:start])
            launch.flags(words[start:], document, script_name, prefix="server.")
            return


def _read_runtime_environment(words: list[Word], files: JobFiles, path: Path) -> dict[str, Leaf]:
    """Return the variables that ``ray job submit`` gives to a job: ``--runtime-env-json JSON``, ``--runtime-env FILE``.

    path: the script's.
    """
    if (file := launch.option(words, "--runtime-env")) is not None:
        found = files.beside(file.text, path.parent)
        return files.document(found, files.name(found)).environment if found is not None else {}
    if (text := launch.option(words, "--runtime-env-json")) is None:
        return {}
    try:
        variables = msgspec.json.decode(text.text)["env_vars"]
        items = [(str(name), value) for name, value in variables.items()]
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return {}
    return {name: Leaf(value, name, files.name(path), text.line or None, text.reason) for name, value in items}


def _parse_quoted_commands(command: list[Word], name: str) -> list[list[Word]]:
    """Return the words of each quoted command that starts a job: ``bash -c "cd x && python -m …"``."""
    commands = []
    patterns = [framework.launches for framework in FRAMEWORKS.values() if framework.launches]
    for word in command:
        if (
            " " in word.text
            and not launch.OVERRIDE.fullmatch(word.text)
            and any(pattern.search(word.text) for pattern in patterns)
        ):
            try:
                commands.append(
                    [Word(token.start, word.line) for token in tokenize(word.text, name) if token.operator is None]
                )
            except CkptcheckError:
                continue
    return commands


def _read_command(words: list[Word], framework: Framework, files: JobFiles, path: Path) -> Document:
    """Read the settings of a launch command, and the configuration files that it names. path: the script's."""
    document = Document()
    script_name = files.name(path)
    if framework.style == "flags":
        start = _find_program(words, framework.program) + 1
        short = SHORT if framework.name == "vllm" else None
        if framework.config_options:
            before_flags = itertools.takewhile(lambda word: not word.text.startswith("-"), words[start:])
            named = next((word for word in before_flags if word.text.endswith(YAML)), None)
            _read_named_config(launch.option(words[start:], *framework.config_options) or named, document, files, path)
        positional = launch.flags(words[start:], document, script_name, short=short)
        if positional and framework.name == "vllm":
            model = positional[0]
            document.put("model_tag", Leaf(model.text, "MODEL", script_name, model.line, model.reason))
        document.script = " ".join(word.text for word in words[:start])
        return document
    if framework.style == "dotted":
        return _read_prime_rl_command(words, files, path)
    if (others := compose_launch(words, document, files, path)) is not None:
        document.script = " ".join(word.text for word in others)
        return document
    config_file = launch.option(words, *CONFIG_FILE)
    config_name, config_path = launch.option(words, *CONFIG_NAME), launch.option(words, *CONFIG_PATH)
    config = ""
    if config_file:
        config = config_file.text
    elif config_name:
        config = f"{config_path.text}/{config_name.text}" if config_path else config_name.text
    if config:
        file = files.beside(config, path.parent)
        if file is not None:
            document.update(files.document(file, files.name(file)))
        elif framework.standard is None or not framework.standard.fullmatch(config):
            document.notes.append(f"{clip(config)}, the configuration that {script_name} names, does not exist")
            document.is_incomplete = True
    rest = launch.apply_overrides(words, document, script_name)
    document.script = " ".join(word.text for word in rest)
    return document


def _find_program(words: list[Word], own: re.Pattern[str] | None) -> int:
    """Return the position of the program that a command runs: a script, a module after ``-m``, or the first word.

    own: what the framework's program looks like, where others may stand before it.
    """
    if own is not None:
        return next((index for index, word in enumerate(words) if own.match(word.text)), 0)
    for index, word in enumerate(words):
        if PROGRAM.search(word.text) or (index and words[index - 1].text == "-m"):
            return index
    return 0


def _read_named_config(name: Word | None, document: Document, files: JobFiles, path: Path) -> None:
    """Read the configuration file that a launch line names, if it does, into the document. path: the script's."""
    if name is None:
        return
    file = None if name.reason else files.beside(name.text, path.parent)
    if file is not None:
        document.update(files.document(file, files.name(file)))
        return
    why = f"is not known: {name.reason}" if name.reason else "does not exist"
    document.notes.append(
        f"{clip(name.text) or 'a configuration'}, the configuration that {files.name(path)} names, {why}"
    )
    document.is_incomplete = True


def _read_prime_rl_command(words: list[Word], files: JobFiles, path: Path) -> Document:
    """Read a command of prime-rl: ``rl @ rl.toml --trainer @ trainer.toml --trainer.model.cp 2``."""
    document = Document()
    rest: list[Word] = []
    section = ""
    for index, word in enumerate(words):
        previous = words[index - 1].text if index else ""
        if previous == "@":
            file = files.beside(word.text, path.parent)
            if file is None:
                document.notes.append(
                    f"{clip(word.text)}, a configuration that {files.name(path)}:{word.line} names, does not exist"
                )
                continue
            part = files.document(file, files.name(file))
            for key, leaf in part.leaves.items():
                document.put(f"{section}.{key}" if section else key, leaf)
            document.notes += part.notes
            document.is_incomplete |= part.is_incomplete
        elif word.text == "@":
            section = previous.removeprefix("--") if previous.startswith("--") else ""
            if section and rest:
                rest.pop()
        else:
            rest.append(word)
    start = next((index for index, word in enumerate(rest) if word.text.startswith("--")), len(rest))
    launch.flags(rest[start:], document, files.name(path))
    return document


def _apply_overrides(document: Document, overrides: Sequence[str], framework: Framework) -> None:
    """Apply the user's ``key=value`` arguments to the document, in the style of the framework."""
    words = [Word(text, 0) for text in overrides]
    # What the user gives ckptcheck is not a command line of Hydra: it may name keys that no file has.
    document.is_composed = False
    if framework.style == "flags":
        words = [Word(f"--{word.text.lstrip('+')}", 0) for word in words]
        launch.flags(words, document, None)
    else:
        launch.apply_overrides(words, document, None)


def _set_versions(job: Job, document: Document, engine_version: str, te_version: str) -> None:
    """Set the versions of engine and Transformer Engine: from the user, else from a file that pins them."""
    for version in (engine_version, te_version):
        if version and not re.fullmatch(r"v?\d+(\.\d+)*\S*", version):
            raise CkptcheckError(f"{clip(version)} is no version", hint="write it as 0.18.1")
    pinned = document.versions.get(job.engine)
    job.engine_version = engine_version.removeprefix("v") or (str(pinned.value) if pinned else "")
    te = document.versions.get("transformer_engine")
    job.te_version = te_version or (str(te.value) if te else "")
    if job.engine and job.engine not in ("vllm", "sglang") and job["engine.name"].leaf is not None:
        leaf = job["engine.name"].leaf
        job.unknown_keys.append(UnknownKey(leaf, f"{clip(job.engine, 40)} is no engine that ckptcheck knows"))
