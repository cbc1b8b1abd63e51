"""What a reader says about its framework, and how settings come out of a document by it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.fields import FIELDS, Kind
from ckptcheck.preflight.interpolation import Found, look
from ckptcheck.preflight.job import Job, Setting, Unread, shown

Style = Literal["hydra", "flags", "dotted"]
HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
UNITS = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1024**2}
SWITCHES = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "": True,
    "1": True,
    "0": False,
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


@dataclass(frozen=True)
class Source:
    """Where a framework keeps a field. paths: the first that is written counts; null is as if it were not.

    default: what it is then, None where that is not known; of: whose default it is, for the report.
    read: translates what is written; what it returns None for is not understood.
    """

    paths: tuple[str, ...] = ()
    default: object = None
    of: str = ""
    read: Callable[[object], object] | None = None


@dataclass(frozen=True)
class Framework:
    """A framework's reader.

    signs: keys of which all must be there for a document to be its own. launches: matches a command that starts it.
    style: how its command lines set keys. modelled: section → the names in it that are known, read or not; others are
    reported. finish: what needs more than one key. standard: matches the names of configurations whose values are the
    defaults here.
    """

    name: str
    title: str
    style: Style
    sources: Mapping[str, Source]
    signs: tuple[tuple[str, ...], ...] = ()
    launches: re.Pattern[str] | None = None
    standard: re.Pattern[str] | None = None
    modelled: Mapping[str, frozenset[str]] = field(default_factory=dict)
    finish: Callable[[Job, Document], None] = lambda job, document: None

    def owns(self, document: Document) -> bool:
        """Whether a document has the keys of this framework."""
        return any(all(document.has(key) for key in keys) for keys in self.signs)


def fill(job: Job, document: Document, framework: Framework) -> None:
    """Put into the job what the document says."""
    for name, source in framework.sources.items():
        job.settings[name] = setting_of(job, document, name, source)
    for section, known in framework.modelled.items():
        for rest, leaf in document.below(section) if section else document.leaves.items():
            first = rest.partition(".")[0]
            if first not in known:
                job.not_understood.append(Unread(leaf, near=nearest(first, known)))
    framework.finish(job, document)
    job.settings = {name: setting for name, setting in job.settings.items() if setting.status != "unknown"}


def setting_of(job: Job, document: Document, name: str, source: Source) -> Setting:
    """Return the setting of one field; what cannot be read as its kind is noted as not understood."""
    for path in source.paths:
        found = look(document, path)
        if found is None or (found.value is None and not found.reason):
            continue
        made = setting_from(job, found, name, source.read)
        if made is not None:
            return made
        return Setting()
    if source.paths and job.incomplete:
        return Setting(None, "unresolved", f"it may be set where nobody could look: {job.notes[0]}")
    if source.default is not None:
        return Setting(source.default, "default", f"default of {source.of}")
    return Setting()


def setting_from(job: Job, found: Found, name: str, read: Callable[[object], object] | None = None) -> Setting | None:
    """Return the setting for what was found, None (and a note) where it is not what this field can hold."""
    if found.reason:
        return Setting(None, "unresolved", found.reason, found.leaf)
    value = read(found.value) if read is not None else found.value
    kind = FIELDS[name][0]
    value = coerced(value, kind)
    if value is None:
        what = {"number": "a number", "flag": "true or false", "text": "a name"}[kind]
        unread = Unread(found.leaf, f"{shown(found.value)} is not {what} that is known here")
        if unread not in job.not_understood:  # several fields may be read from one key
            job.not_understood.append(unread)
        return None
    return Setting(value, "set", "", found.leaf)


def coerced(value: object, kind: Kind) -> object:
    """Read a value as a kind, None where it is none.

    >>> coerced("8k", "number"), coerced("", "flag"), coerced("hot", "number"), coerced(True, "number")
    (8000, True, None, None)
    """
    if kind == "flag":
        if isinstance(value, bool):
            return value
        return SWITCHES.get(str(value).lower()) if isinstance(value, (str, int)) else None
    if kind == "number":
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, float)):
            return value if abs(value) < 1e15 else None  # NaN and infinity too
        if isinstance(value, str):
            if human := HUMAN.fullmatch(value):
                return int(float(human[1]) * UNITS[human[2]])
            try:
                number = float(value)
            except ValueError:
                return None
            return (
                (int(number) if number.is_integer() and value.lstrip("-+").isdigit() else number)
                if abs(number) < 1e15
                else None
            )
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value) or None


def dtype(value: object) -> object:
    """A dtype under its full name: bf16 → bfloat16."""
    text = str(value).removeprefix("torch.").lower()
    return DTYPES.get(text, text)


def set_to(job: Job, name: str, value: object, like: Setting, source: str = "") -> None:
    """Set a field to what follows from another setting, whose place it takes."""
    if like.status == "unresolved":
        job.settings[name] = like
    else:
        job.settings[name] = Setting(value, like.status, source or like.source, like.leaf)


def default(job: Job, name: str, value: object, of: str) -> None:
    """Set a field that is not set to a default."""
    if job[name].status == "unknown":
        job.settings[name] = Setting(value, "default", f"default of {of}")


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set of known keys."""
    return frozenset(text.split())


def nearest(name: str, known: frozenset[str], cutoff: float = 0.82) -> str:
    """What may have been meant, "" where nothing is near. cutoff: of difflib, 0 to 1."""
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, cutoff)), "") if len(name) < 80 else ""


def count_gpus(job: Job, document: Document, paths: tuple[str, str], of: str) -> None:
    """Set the number of GPUs that train: nodes times GPUs of a node, which are 1 and 8 where they are not written."""
    found = [look(document, path) for path in paths]
    numbers = [one.value if one else standard for one, standard in zip(found, (1, 8), strict=True)]
    nodes, each = numbers
    leaf = next((one.leaf for one in found if one), None)
    if isinstance(nodes, int) and isinstance(each, int):
        job.settings["trainer.world"] = Setting(nodes * each, "set" if leaf else "default", f"default of {of}", leaf)


def environment_flag(document: Document, name: str) -> Setting:
    """What a script exports, read as a switch."""
    leaf: Leaf | None = document.environment.get(name)
    if leaf is None:
        return Setting()
    if leaf.reason:
        return Setting(None, "unresolved", leaf.reason, leaf)
    return Setting(str(leaf.value).lower() in ("1", "true", "yes", "on"), "set", "", leaf)
