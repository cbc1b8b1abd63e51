"""Reads the settings of a verb: ``[verbs]``, for all, and ``[verbs.NAME]`` of ckptcheck.toml, and ``--set NAME=VALUE``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.text.observer import Observer
from ckptcheck.verbs import VERBS
from ckptcheck.verbs.options import StrPath
from ckptcheck.verbs.parameter import Parameter

if TYPE_CHECKING:
    from ckptcheck.linter.settings import Settings

RUN_PROGRAMS = ("engine_python", "trainer_python")
"""Settings that name a program, which runs."""
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
"""Words for True and False."""


def read_project_settings(
    targets: Sequence[StrPath],
    config: StrPath | None,
    observer: Observer,
    is_for: tuple[str, Container[str]] | None = None,
) -> Settings:
    """Return the settings of the file that the user names, else of the nearest; none where the working directory is a target's.

    Args:
        targets: What is checked.
        config: The file that the user names.
        observer: Receives a sentence on a file that does not count.
        is_for: A command and its settings, if only those matter.

    Raises CkptcheckError for malformed settings.
    """
    from ckptcheck.linter.settings import find_settings, load_settings

    if config is not None:
        return load_settings(Path(config))
    project = find_settings(Path.cwd(), [folder for target in targets for folder in list_folders(os.fspath(target))])
    if (file := project.passed_over) is not None and (is_for is None or _has_some(file, *is_for)):
        observer.log(f"{file} is not read: it may have come with the target; --config {file} uses it")
    return project


def _has_some(file: Path, command: str, known: Container[str]) -> bool:
    """Whether a file that is not read has settings for a command, or is malformed. known: the command's settings."""
    from ckptcheck.linter.settings import load_settings

    try:
        verbs = load_settings(file).verbs
    except (CkptcheckError, OSError):
        return True
    return command in verbs or any(name.replace("-", "_") in known for name in verbs)


def refuse_code(file: Path | None, what: str) -> CkptcheckError:
    """Return the error for settings that run code and were found, not named. what: what of them does."""
    return CkptcheckError(
        f"{file}: {what}, and a settings file runs code only where --config names it", hint=f"--config {file} names it"
    )


def list_folders(target: str) -> list[Path]:
    """Return the folders on this disk in which a target lies: those of the parts of a chain, of the matches of a pattern."""
    from ckptcheck.checkpoint.deltas.target import split_chain
    from ckptcheck.checkpoint.targets import expand_pattern, normalize_target
    from ckptcheck.text.addresses import is_remote_address
    from ckptcheck.text.file_io import expand_home, real_path

    try:
        whole = normalize_target(target)
        pieces = [piece for piece in split_chain(whole) or [whole] if not is_remote_address(piece)]
        paths = [Path(expand_home(path)) for piece in pieces for path in expand_pattern(piece)]
    except CkptcheckError:  # no target: the verb says so
        return []
    folders: list[Path] = []
    for path in paths:
        if os.path.exists(path):  # False also for a name that no file can have
            folders += [path] if path.is_dir() else [path.parent, real_path(path).parent]
    return folders


def read_verb_settings(
    verb: str,
    known: Mapping[str, Parameter],
    targets: Sequence[StrPath],
    config: StrPath | None,
    given: Container[str],
    observer: Observer,
) -> dict[str, Any]:
    """Return the project's settings for a verb.

    Args:
        verb: Its function.
        known: Its settings.
        targets: What it reads; where the working directory is the folder of one, no settings are looked for.
        config: The file of the settings; None: the nearest.
        given: The settings that the caller gives, which win.
        observer: Receives a sentence on a file that does not count.

    Raises CkptcheckError for a setting or a verb that is not there, for a value that is not taken, and for one that runs a program
    in a file that is not named.
    """
    names = {words.replace(" ", "-"): words for words in VERBS}
    own = next(name for name, words in names.items() if VERBS[words].rpartition(":")[2] == verb)
    try:
        project = read_project_settings(targets, config, observer, (own, known))
    except (OSError, ValueError):  # a name that no file can have: the verb says so
        return {}
    if not project.verbs:
        return {}
    file = os.fspath(project.file or "")
    tables = {name: table for name, table in project.verbs.items() if isinstance(table, dict)}
    for name in tables:
        if name not in names:
            raise CkptcheckError(f"{file}: verbs.{name} is no verb{_suggest(name, names)}")
    of_all = {key: value for key, value in project.verbs.items() if key not in tables}
    of_all = {key: value for key, value in of_all.items() if key.replace("-", "_") in known}
    found = parse_settings({**of_all, **tables.get(own, {})}, known, f"{file}: verbs.{own}", verb)
    for name in RUN_PROGRAMS:
        if config is None and name in found and name not in given:
            raise refuse_code(project.file, f"{name.replace('_', '-')} names a program that would run")
    return found


def parse_settings(table: Mapping[str, Any], known: Mapping[str, Parameter], place: str, owner: str) -> dict[str, Any]:
    """Return setting → value. place: the place of the table. owner: the verb.

    Raises CkptcheckError as `read_verb_settings` does.
    """
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            written = [each.replace("_", "-") for each in known]
            raise CkptcheckError(
                f"{place} has no setting {key}{_suggest(key, written)}", f"it has {', '.join(written)}"
            )
        try:
            found[name] = known[name].check(value, owner)
        except TypeError as error:
            raise CkptcheckError(str(error)) from None
    return found


def parse_written(words: list[str], known: Mapping[str, Parameter], verb: str) -> dict[str, Any]:
    """Return setting → value for ``NAME=VALUE`` as the command line has it. Raises UsageError."""
    table: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word} gives no value", "write --set NAME=VALUE")
        parameter = known.get(key.replace("-", "_"))
        value: Any = text
        if parameter is not None and parameter.item:
            value = [*table.get(key, []), *text.split(",")]
        elif parameter is not None and bool in parameter.kinds:
            value = SWITCHES.get(text.lower(), text)
        elif parameter is not None and {int, float} & {*parameter.kinds}:
            value = _parse_number(text)
        table[key] = value
    return parse_settings(table, known, "--set", verb)


def _parse_number(text: str) -> float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _suggest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
