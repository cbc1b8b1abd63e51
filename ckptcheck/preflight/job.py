"""A job of any framework: what it says, where it says it, and what nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from ckptcheck.checkpoint.document import clipped
from ckptcheck.preflight.document import Leaf
from ckptcheck.preflight.fields import FIELDS, Kind
from ckptcheck.report import Section
from ckptcheck.rule import Problem, Skip

if TYPE_CHECKING:
    from ckptcheck.preflight.named_checkpoints import NamedCheckpoint

Status = Literal["set", "default", "unresolved", "unknown"]


@dataclass(frozen=True)
class Setting:
    """A value and where it is from.

    status: set: written in a file or on the command line; default: of a framework or engine, which `source` names;
    unresolved: written, but nobody can tell what it comes to (`source` says why); unknown: neither written nor known.
    """

    value: object = None
    status: Status = "unknown"
    source: str = ""
    leaf: Leaf | None = None

    @property
    def known(self) -> bool:
        """Whether the value can be relied on."""
        return self.status in ("set", "default")

    @property
    def place(self) -> str:
        """In brackets after a value: ``job.yaml:12``, ``default of vLLM 0.32.0``, ``command line``."""
        if self.leaf is None:
            return self.source
        if self.leaf.file is None:
            return "command line"
        return f"{self.leaf.file}:{self.leaf.line}" if self.leaf.line else self.leaf.file


@dataclass(frozen=True)
class Unread:
    """A key that was not understood. near: what may have been meant."""

    leaf: Leaf
    why: str = ""
    near: str = ""


@dataclass
class Job:
    """The evidence of rules on jobs.

    settings: name in `FIELDS` → setting. not_understood: keys in the parts that are modelled which no reader knows.
    notes: files that were named and could not be followed; incomplete: what they may set is then not known, and a
    framework's default is no answer. engine_version, te_version: as told, "" where not.
    checkpoints: what the named checkpoints are found to be, filled by `preflight.named_checkpoints`. sections: what is told
    beside the findings: the commands that check the rest, and what was understood where that is asked for.
    """

    target: str
    framework: str
    settings: dict[str, Setting] = field(default_factory=dict)
    not_understood: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    engine_version: str = ""
    te_version: str = ""
    files: tuple[str, ...] = ()
    incomplete: bool = False
    checkpoints: Mapping[str, NamedCheckpoint] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    kind: str = "job"

    def __getitem__(self, name: str) -> Setting:
        assert name in FIELDS, name
        return self.settings.get(name, Setting())

    def text(self, name: str) -> str | None:
        """The value of a text, None where it is not known."""
        value = self._of(name, "text")
        return None if value is None else str(value)

    def number(self, name: str) -> float | None:
        """The value of a number, None where it is not known or not given."""
        value = self._of(name, "number")
        return value if isinstance(value, (int, float)) else None

    def flag(self, name: str) -> bool | None:
        """The value of a flag, None where it is not known."""
        value = self._of(name, "flag")
        return value if isinstance(value, bool) else None

    def _of(self, name: str, kind: Kind) -> object:
        assert FIELDS[name][0] == kind, name
        setting = self[name]
        return setting.value if setting.known else None

    def need(self, *names: str) -> None:
        """Raise Skip where one of these is written and cannot be resolved; one that is unknown is left to the rule."""
        for name in names:
            setting = self[name]
            if setting.status == "unresolved":
                raise Skip(f"{setting.leaf.key if setting.leaf else name} is not resolved: {setting.source}")

    def said(self, name: str) -> str:
        """A value with its place: ``0.7 (job.yaml:12)``."""
        setting = self[name]
        return f"{shown(setting.value)} ({setting.place})" if setting.place else shown(setting.value)

    def problem(self, message: str, at: str, hint: str | None = None) -> Problem:
        """A problem at the place of a setting."""
        leaf = self[at].leaf
        if leaf is None or leaf.file is None:
            return Problem(message, file=None, key=leaf.key if leaf else None, hint=hint)
        return Problem(message, file=leaf.file, key=leaf.key, hint=hint, line=leaf.line)

    @property
    def engine(self) -> str:
        """vllm, sglang, another, or "" where it is not known."""
        return self.text("engine.name") or ""

    @cached_property
    def moe(self) -> bool | None:
        """Whether the model has experts: the job says so, or the checkpoint does."""
        told = self.flag("trainer.moe")
        if told is not None:
            return told
        found = [named.experts for named in self.checkpoints.values() if named.experts is not None]
        return any(found) if found else None

    @property
    def subject(self) -> str:
        """One line that says what it is: ``verl · megatron TP2 → vllm 0.18.1 TP4``."""
        sides = []
        if backend := self.text("trainer.backend"):
            sides.append(" ".join([backend, *self._parallel("trainer", ("tp", "pp", "ep", "cp"))]))
        if self.engine:
            version = f" {self.engine_version}" if self.engine_version else ""
            sides.append(" ".join([f"{self.engine}{version}", *self._parallel("engine", ("tp",))]))
        return " · ".join(part for part in (self.framework, " → ".join(sides)) if part)

    def _parallel(self, side: str, names: tuple[str, ...]) -> list[str]:
        numbers = [(name, self.number(f"{side}.{name}")) for name in names]
        return [f"{name.upper()}{number:g}" for name, number in numbers if number and number > 1]

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: what cannot be read at all is trouble, and what is not understood is a finding."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Files read; a configuration has no tensors."""
        return {"files": len(self.files), "tensors": 0, "bytes": 0}


def settings_section(job: Job) -> Section:
    """A table of what was understood: name, value, place."""
    rows = []
    for name in FIELDS:
        setting = job[name]
        if setting.status == "unresolved":
            rows.append(
                (name, "not resolved", f"{setting.place}: {setting.source}" if setting.leaf else setting.source)
            )
        elif setting.known:
            rows.append((name, shown(setting.value), setting.place))
    return Section("What the job says", ("setting", "value", "from"), tuple(rows))


def shown(value: object) -> str:
    """Write a value as a message does.

    >>> shown(True), shown(0.7), shown(8192.0), shown("flash"), shown(None)
    ('on', '0.7', '8192', 'flash', 'none')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    return "none" if value is None else clipped(str(value), 60)
