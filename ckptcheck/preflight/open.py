"""Turns what the user named, files and overrides, into a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import few
from ckptcheck.preflight import launch
from ckptcheck.preflight.commands import commands
from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.engine_flags import SHORT, fill_defaults
from ckptcheck.preflight.files import SHELL, TOML, YAML, Files
from ckptcheck.preflight.framework import Framework, environment_flag, fill
from ckptcheck.preflight.job import Job, Unread
from ckptcheck.preflight.named_checkpoints import look_at
from ckptcheck.preflight.readers import engine_line, nemo_rl, pipelinerl, prime_rl, roll, slime, verl
from ckptcheck.preflight.shell import Script, Word
from ckptcheck.preflight.words import tokens
from ckptcheck.report import Section
from ckptcheck.tilde import expanded

FRAMEWORKS: dict[str, Framework] = {
    reader.name: reader
    for reader in (
        verl.FRAMEWORK, slime.FRAMEWORK, nemo_rl.FRAMEWORK, pipelinerl.FRAMEWORK, roll.FRAMEWORK, prime_rl.FRAMEWORK,
        engine_line.VLLM, engine_line.SGLANG,
    )
}  # fmt: skip
CONFIG_FILE = ("--config", "--config-file")
CONFIG_NAME = ("--config-name", "--config_name", "-cn")
CONFIG_PATH = ("--config-path", "--config_path", "-cp", "--config-dir")
PROGRAM = re.compile(r"(\S*\.py|\S*launch_server|\S*api_server|serve|\S*/?rl)$")


def open_job(
    arguments: Sequence[str],
    *,
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    scan: bool = True,
) -> Job:
    """Read a job. arguments: files, and ``key=value`` to lay over them.

    framework: a key of `FRAMEWORKS`; None finds it by the keys. scan: look at the checkpoints that the job names.
    Raises CkptcheckError, with file and line where there is one, for what cannot be read or belongs to no framework.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise CkptcheckError(f"there is no framework {clipped(framework)}", hint=f"there is {', '.join(FRAMEWORKS)}")
    names, given = _sorted(arguments)
    if not names:
        raise CkptcheckError("no configuration is named", hint="name the job's .yaml, .toml or .sh file")
    paths = [Path(expanded(name)) for name in names]
    files = Files(paths[0])
    document, found = _document(files, paths, names, framework)
    if found is None:
        found = _owner(document, names[0])
    _lay_over(document, given, found)
    job = Job(target=names[0], framework=found.title, notes=document.notes, files=tuple(files.read))
    job.incomplete = document.incomplete
    fill(job, document, found)
    _versions(job, document, engine_version, te_version)
    for name, variable in (("dump.on", "DUMP_ON"), ("dump.prompts_only", "PROMPTS_ONLY")):
        if (setting := environment_flag(document, variable)).status != "unknown":
            job.settings[name] = setting
    fill_defaults(job)
    if scan:
        look_at(job, paths[0].parent)
    if lines := commands(job):
        job.sections = (Section("Then, on the real engine and trainer", lines=tuple(lines)),)
    return job


def _sorted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and overrides: an override is what looks like one and is no file."""
    names: list[str] = []
    given: list[str] = []
    for argument in arguments:
        likely = launch.OVERRIDE.fullmatch(argument) or launch.REMOVAL.fullmatch(argument)
        (given if likely and not Path(argument).exists() else names).append(argument)
    return names, given


def _document(
    files: Files, paths: Sequence[Path], names: Sequence[str], framework: str | None
) -> tuple[Document, Framework | None]:
    whole = Document()
    chosen = FRAMEWORKS.get(framework or "")
    several = len(paths) > 1 and all(path.suffix in TOML for path in paths)
    for path, name in zip(paths, names, strict=True):
        if path.suffix in YAML + TOML:
            part = files.document(path, name)
            section = (
                next((full for start, full in prime_rl.PARTS.items() if path.stem.startswith(start)), "")
                if several
                else ""
            )
            for key, leaf in part.leaves.items():
                whole.put(f"{section}.{key}" if section else key, leaf)
            whole.environment |= part.environment
            whole.versions |= part.versions
            whole.notes += part.notes
            whole.incomplete |= part.incomplete
        elif path.suffix in SHELL:
            script, notes, versions = files.script(path, name)
            part, chosen = _launched(script, files, path, name, chosen)
            part.notes += notes
            part.versions = versions | part.versions
            whole.update(part)
        else:
            raise CkptcheckError(
                f"{name} is neither YAML, TOML nor a shell script", hint="known are .yaml, .yml, .toml and .sh"
            )
    return whole, chosen


def _owner(document: Document, name: str) -> Framework:
    owners = [one for one in FRAMEWORKS.values() if one.owns(document)]
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise CkptcheckError(
            f"{name} could be of {' or '.join(one.title for one in owners)}", hint="say which with --framework"
        )
    sections = list(dict.fromkeys(key.partition(".")[0] for key in document.leaves))
    raise CkptcheckError(
        f"{name} has the keys of no framework that is known here: {few([clipped(key, 40) for key in sections], 5) or 'none'}",
        hint=f"say which with --framework: {', '.join(FRAMEWORKS)}",
    )


def _launched(
    script: Script, files: Files, path: Path, name: str, chosen: Framework | None
) -> tuple[Document, Framework]:
    """Find the command that starts the job, and read what it sets."""
    wanted = [chosen] if chosen else list(FRAMEWORKS.values())
    commands = [*script.commands, *(inner for command in script.commands for inner in _quoted(command, name))]
    for framework in wanted:
        assert framework is not None
        for words in reversed(commands):
            if framework.launches is not None and framework.launches.search(" ".join(word.text for word in words)):
                document = _settings(words, framework, files, path)
                for variable, word in script.exports.items():
                    document.environment[variable] = Leaf(
                        word.text, variable, files.name(path), word.line or None, word.reason
                    )
                return document, framework
    what = f"nothing of {chosen.title}" if chosen else "no training job and no engine that is known here"
    raise CkptcheckError(f"{name} starts {what}", hint=f"known are {', '.join(FRAMEWORKS)}")


def _quoted(command: list[Word], name: str) -> list[list[Word]]:
    """The commands in a quoted word: ``bash -c "cd x && python -m …"``."""
    found = []
    for word in command:
        if " " in word.text and any(one.launches and one.launches.search(word.text) for one in FRAMEWORKS.values()):
            try:
                found.append(
                    [Word(token.start, word.line) for token in tokens(word.text, name) if token.operator is None]
                )
            except CkptcheckError:
                continue
    return found


def _settings(words: list[Word], framework: Framework, files: Files, path: Path) -> Document:
    document = Document()
    shown = files.name(path)
    if framework.style == "flags":
        start = next((at + 1 for at, word in enumerate(words) if PROGRAM.search(word.text)), 1)
        short = SHORT if framework.name == "vllm" else None
        first = launch.flags(words[start:], document, shown, short=short)
        if first and framework.name == "vllm":
            document.put("model_tag", Leaf(first[0].text, "MODEL", shown, first[0].line, first[0].reason))
        document.script = " ".join(word.text for word in words[:start])
        return document
    if framework.style == "dotted":
        return _dotted(words, files, path)
    config = launch.option(words, *CONFIG_FILE)
    named, below = launch.option(words, *CONFIG_NAME), launch.option(words, *CONFIG_PATH)
    wanted = config.text if config else f"{below.text}/{named.text}" if named and below else named.text if named else ""
    if wanted:
        file = files.beside(wanted, path.parent)
        if file is not None:
            document.update(files.document(file, files.name(file)))
        elif framework.standard is None or not framework.standard.fullmatch(wanted):
            document.notes.append(f"{clipped(wanted)}, the configuration that {shown} names, is not there to be read")
            document.incomplete = True
    rest = launch.overrides(words, document, shown)
    document.script = " ".join(word.text for word in rest)
    return document


def _dotted(words: list[Word], files: Files, path: Path) -> Document:
    """prime-rl: ``rl @ rl.toml --trainer @ trainer.toml --trainer.model.cp 2``."""
    document = Document()
    rest: list[Word] = []
    section = ""
    for at, word in enumerate(words):
        before = words[at - 1].text if at else ""
        if before == "@":
            file = files.beside(word.text, path.parent)
            if file is None:
                document.notes.append(
                    f"{clipped(word.text)}, a configuration that {files.name(path)}:{word.line} names, is not there to be read"
                )
                continue
            part = files.document(file, files.name(file))
            for key, leaf in part.leaves.items():
                document.put(f"{section}.{key}" if section else key, leaf)
            document.notes += part.notes
            document.incomplete |= part.incomplete
        elif word.text == "@":
            section = before.removeprefix("--") if before.startswith("--") else ""
            if section and rest:
                rest.pop()
        else:
            rest.append(word)
    at = next((at for at, word in enumerate(rest) if word.text.startswith("--")), len(rest))
    launch.flags(rest[at:], document, files.name(path))
    return document


def _lay_over(document: Document, given: Sequence[str], framework: Framework) -> None:
    words = [Word(text, 0) for text in given]
    if framework.style == "flags":
        words = [Word(f"--{word.text.lstrip('+')}", 0) for word in words]
        launch.flags(words, document, None)
    else:
        launch.overrides(words, document, None)


def _versions(job: Job, document: Document, engine_version: str, te_version: str) -> None:
    for version in (engine_version, te_version):
        if version and not re.fullmatch(r"v?\d+(\.\d+)*\S*", version):
            raise CkptcheckError(f"{clipped(version)} is no version", hint="write it as 0.18.1")
    pinned = document.versions.get(job.engine)
    job.engine_version = engine_version.removeprefix("v") or (str(pinned.value) if pinned else "")
    te = document.versions.get("transformer_engine")
    job.te_version = te_version or (str(te.value) if te else "")
    if job.engine and job.engine not in ("vllm", "sglang") and job["engine.name"].leaf is not None:
        leaf = job["engine.name"].leaf
        job.not_understood.append(Unread(leaf, f"{clipped(job.engine, 40)} is no engine that is known here"))
