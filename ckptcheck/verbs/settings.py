"""Reads the settings of a verb: ``[verbs]``, for all, and ``[verbs.NAME]`` of ckptcheck.toml, and ``--set NAME=VALUE``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.verbs import VERBS
from ckptcheck.verbs.options import StrPath
from ckptcheck.verbs.parameter import Parameter

SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
"""Words for True and False."""


def read_verb_settings(
    verb: str, known: Mapping[str, Parameter], targets: Sequence[StrPath], config: StrPath | None
) -> dict[str, Any]:
    """Return the project's settings for a verb.

    verb: its function. known: its settings. targets: what it reads; settings inside of these do not count. config: the file of the
    settings; None: the nearest. Raises CkptcheckError for a setting or a verb that is not there, and for a value that is not taken.
    """
    from ckptcheck.linter.settings import find_settings, load_settings

    try:
        project = (
            load_settings(Path(config))
            if config
            else find_settings(Path.cwd(), [os.fspath(target) for target in targets])
        )
    except OSError:  # a name that no file can have: the verb says so
        return {}
    if not project.verbs:
        return {}
    file = os.fspath(project.file or "")
    names = {words.replace(" ", "-"): words for words in VERBS}
    tables = {name: table for name, table in project.verbs.items() if isinstance(table, dict)}
    for name in tables:
        if name not in names:
            raise CkptcheckError(f"{file}: verbs.{name} is no verb{_suggest(name, names)}")
    of_all = {key: value for key, value in project.verbs.items() if key not in tables}
    own = next(name for name, words in names.items() if VERBS[words].rpartition(":")[2] == verb)
    of_all = {key: value for key, value in of_all.items() if key.replace("-", "_") in known}
    return parse_settings({**of_all, **tables.get(own, {})}, known, f"{file}: verbs.{own}", verb)


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
