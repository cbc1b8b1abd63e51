"""Reads a gate file: the job, the gate's time limit, and the settings in which its checks differ from the job."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import join_words
from ckptcheck.text.toml_text import read_toml_file

FIRST_STEP = "first-step"
"""The stage that runs the job's own command. A gate has it only where the user asks for it by name."""
STAGES = ("preflight", "scan", "refit", "parity")
"""The stages of a gate, in the order of their cost."""
ALL_STAGES = (*STAGES, FIRST_STEP)
KEYS = {
    "job": "a file, or a list of files and key=value overrides",
    "model": "the path of a checkpoint",
    "deadline": 'a time such as "10 min"',
    "stages": f"a list of some of {', '.join(ALL_STAGES)}",
    "go-on": "true or false",
    "folder": "the path of a folder",
    **dict.fromkeys(ALL_STAGES, "a table"),
}
"""Key of a gate file → the form of its value."""
UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


@dataclass(frozen=True)
class GateRequest:
    """The checks of a gate, and their time limit."""

    job: tuple[str, ...]
    """The job's files and overrides, as ``preflight`` takes them."""
    deadline: float | None = None
    """Seconds from the gate's start; None: none."""
    stages: tuple[str, ...] = STAGES
    """The stages that run."""
    goes_on: bool = False
    """Whether more expensive stages run although a cheaper one found errors."""
    folder: Path | None = None
    """The folder for the page and for rollouts; None: one named after the job, in the working folder."""
    model: str | None = None
    """The checkpoint to scan, to sync and to score, in place of the one that the job names."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Stage → arguments that replace the ones derived from the job."""
    file: Path | None = None
    """The gate file; None for a job without one."""

    @property
    def results_folder(self) -> Path:
        """The folder for the page and for rollouts."""
        return self.folder or Path(f"{Path(self.job[0]).stem}.gate")


def read_gate_request(arguments: Sequence[str]) -> GateRequest:
    """Return the request of a gate file and overrides for its job, or of a job's own files.

    A gate file is a TOML file with the key ``job`` at its top. Raises CkptcheckError for a malformed one.
    """
    if arguments and arguments[0].endswith(".toml"):
        path = Path(expand_home(arguments[0]))
        table = read_toml_file(path)
        if isinstance(table.get("job"), str | list):
            return _read_table(table, path, arguments[1:])
    return GateRequest(tuple(arguments))


def parse_duration(text: str | float) -> float:
    """Return the seconds of ``10 min``, ``90 s``, ``1.5 h`` or a number of seconds. Raises CkptcheckError for anything else.

    >>> parse_duration("10 min"), parse_duration("1.5h"), parse_duration(90)
    (600.0, 5400.0, 90.0)
    """
    match = DURATION.fullmatch(str(text).strip().lower())
    unit = match[2] if match else ""
    scale = UNITS.get(unit) or UNITS.get(unit.removesuffix("s")) if unit else 1
    if isinstance(text, bool) or match is None or scale is None or float(match[1]) == 0:
        raise CkptcheckError(f"{clip(str(text))} is no time", hint='write a number with s, min or h: "10 min"')
    return float(match[1]) * scale


def _read_table(table: dict[str, Any], path: Path, overrides: Sequence[str]) -> GateRequest:
    """Check the form of a gate file. Paths in it are relative to its folder."""
    for key, value in table.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            raise CkptcheckError(
                f"{path}: a gate has no setting {clip(key)}" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"it has {', '.join(KEYS)}",
            )
        if not _has_form(key, value):
            raise CkptcheckError(f"{path}: {key} is not {KEYS[key]}")
    words = [table["job"]] if isinstance(table["job"], str) else table["job"]
    if not words or not all(isinstance(word, str) for word in words):
        raise CkptcheckError(f"{path}: job is not {KEYS['job']}")
    try:
        deadline = parse_duration(table["deadline"]) if "deadline" in table else None
    except CkptcheckError as error:
        raise CkptcheckError(f"{path}: deadline: {error.message}", error.hint) from error
    stages = tuple(stage for stage in ALL_STAGES if stage in table.get("stages", STAGES))
    unused = [stage for stage in STAGES if stage in table and stage not in stages]
    if unused:
        raise CkptcheckError(
            f"{path}: {join_words([f'[{stage}]' for stage in unused])} has no effect, since stages leaves it out"
        )
    return GateRequest(
        job=(*(_locate(word, path.parent) for word in words), *overrides),
        deadline=deadline,
        stages=stages,
        goes_on=table.get("go-on", False),
        folder=Path(_anchor(table["folder"], path.parent)) if "folder" in table else Path(f"{path.stem}.gate"),
        model=_anchor(table["model"], path.parent) if "model" in table else None,
        options={
            stage: {key.replace("-", "_"): value for key, value in table[stage].items()}
            for stage in ALL_STAGES
            if stage in table
        },
        file=path,
    )


def _has_form(key: str, value: Any) -> bool:
    if key in ALL_STAGES:
        return isinstance(value, dict)
    if key == "stages":
        return isinstance(value, list) and bool(value) and all(stage in ALL_STAGES for stage in value)
    if key == "go-on":
        return isinstance(value, bool)
    if key == "deadline":
        return isinstance(value, str | int | float)
    return isinstance(value, str | list) if key == "job" else isinstance(value, str) and bool(value)


def _locate(word: str, folder: Path) -> str:
    """Return a word of the job; if it names a file beside the gate file, as a path from the working folder."""
    anchored = _anchor(word, folder)
    try:
        return anchored if os.path.exists(anchored) or "=" not in word else word
    except (OSError, ValueError):
        return word


def _anchor(name: str, folder: Path) -> str:
    return str(folder / expand_home(name))
