"""Plays the machine on which a job will start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.jobs.this_machine import Probe


@dataclass(frozen=True)
class PlayedMachine(Probe):
    """A machine whose absolute paths are below a folder."""

    free: int = 1 << 50
    memory: int | None = 1 << 36
    taken_ports: tuple[int, ...] = ()

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def shared_memory(self) -> int | None:
        return self.memory

    def is_port_taken(self, port: int) -> bool:
        return port in self.taken_ports


def build_probe(table: Mapping[str, Any], root: Path) -> PlayedMachine:
    """Make a machine with the files that a case names."""
    root.mkdir(exist_ok=True)
    for name in table.get("files", []):
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    return PlayedMachine(
        root, table.get("free", 1 << 50), table.get("shared_memory", 1 << 36), tuple(table.get("taken_ports", ()))
    )
