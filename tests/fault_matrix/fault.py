"""The faults of the matrix, and what is expected of each: written down before any run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "faults"
ENGINES = ("vllm", "sglang")
PARTIES = ("exporter", "trainer", "transport", "loader", "engine state", "compute")


@dataclass(frozen=True)
class Fault:
    """One fault, and what a trial should say of it."""

    family: str
    """The file that it stands in: exporter, transport, loader, …"""
    name: str
    says: str
    """What is done, in one line."""
    inject: str
    """The injector (injectors/*.py)."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    at: str = "load"
    """load: whenever the engine loads; engine: in what the engine holds and computes; around: in the engine around its ranks;
    trainer; request: in how the engine is updated while a request runs."""
    first: int = 1
    """The first sync that has it; of a trainer, the first step."""
    last: int = 9
    """The last sync that has it."""
    when: str = "after"
    """Of a fault at the engine: before or after the first sync that has it, after every one, or at every wake. Of a trainer:
    later, from the first step on."""
    both: bool = False
    """Whether the cold load has it too."""
    saved: bool = False
    """Of an exporter: only the checkpoint of the cold load has it."""
    sent: bool = False
    """Of an exporter: only what is sent has it."""
    model: str = "qwen3-moe"
    ranks: int = 1
    """Of the engine."""
    engines: tuple[str, ...] = ENGINES
    transport: Mapping[str, str] = field(default_factory=dict)
    """Engine → transport, where it is not that of the session."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the trial, where they are not those of the session."""
    codes: tuple[str, ...] = ()
    """Rules of which one has to speak."""
    cause: str = ""
    """What a finding has to match to name the cause, a regular expression."""
    tensor: str = ""
    """What a finding has to match to name the tensor; "" where none is at fault. Likewise the part, the rank and the party."""
    part: str = ""
    rank: str = ""
    party: str = ""

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"


def load_faults() -> tuple[Fault, ...]:
    """Read all faults, by family and in the order of their files."""
    return tuple(_iter_faults())


def _iter_faults() -> Iterator[Fault]:
    for path in sorted(FOLDER.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            listed = {key: tuple(value) if key in ("engines", "codes") else value for key, value in entry.items()}
            yield Fault(path.stem.replace("_", " "), **listed)
