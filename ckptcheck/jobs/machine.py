"""The evidence of ``preflight --here``: what this machine has of the paths, ports and memory that a job needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckptcheck.jobs.document import Leaf

Use = Literal["model", "data", "save", "update"]
"""What a job does with a path: it reads a checkpoint or data, writes checkpoints, or sends weights through it."""


@dataclass(frozen=True)
class LocalPath:
    """A path that the job names, and what this machine has there."""

    use: Use
    named: str
    """The path as the job writes it."""
    leaf: Leaf | None
    """Where the job writes it; None for a value of ckptcheck's own command line."""
    trouble: str = ""
    """Why the job cannot use it, "" where it can."""
    free: int | None = None
    """Free bytes of its disk; None for paths that are only read."""


@dataclass(frozen=True)
class LocalPort:
    """A port on which the job listens."""

    number: int
    leaf: Leaf | None
    """Where the job writes it; None for a value of ckptcheck's own command line."""
    is_taken: bool


@dataclass(frozen=True)
class Machine:
    """What was found on this machine."""

    paths: tuple[LocalPath, ...] = ()
    ports: tuple[LocalPort, ...] = ()
    shared_memory: int | None = None
    """Bytes of /dev/shm; None where this machine has none."""
