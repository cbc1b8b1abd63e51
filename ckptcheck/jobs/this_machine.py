"""Looks on this machine for what a job needs: paths, ports, disks and shared memory. Runs only on request.

It creates and changes nothing: it tries a port by listening on it for an instant, and a folder by its permissions.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.framework import Framework
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.machine import LocalPath, LocalPort, Machine, Use
from ckptcheck.text.file_io import expand_home, path_exists

WRITTEN = ("MASTER_PORT",)
"""Environment variables with a port on which the job listens."""
REMOTE = re.compile(r"[a-z0-9]+://")
SLICE = re.compile(r"@\[[^\[\]]*\]$")
"""Rows that slime takes of a file: ``train.jsonl@[0:100]``."""
DATA_FILES = (".parquet", ".json", ".jsonl", ".arrow", ".csv", ".tsv", ".npy", ".pt")


@dataclass(frozen=True)
class Probe:
    """Asks the operating system; tests put another in its place."""

    root: Path = field(default_factory=lambda: Path("/"))
    """Absolute paths are looked up below it."""

    def free_bytes(self, folder: Path) -> int:
        """Return the bytes that are free on the disk of an existing folder. Raises OSError."""
        return shutil.disk_usage(folder).free

    def shared_memory(self) -> int | None:
        """Return the bytes of /dev/shm, None where there is none."""
        try:
            return shutil.disk_usage("/dev/shm").total
        except OSError:
            return None

    def is_port_taken(self, port: int) -> bool:
        """Return whether another program listens on a port of this machine."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
                listener.listen(1)
            except PermissionError:
                return False
            except OSError:
                return True
        return False


def look_at_machine(job: Job, document: Document, framework: Framework, folder: Path, probe: Probe) -> Machine:
    """Look for everything that a job names on this machine.

    Args:
        job: The job, whose fields name checkpoints and folders.
        document: The job's configuration, which names data and ports.
        framework: Its framework, which says where data and ports are named.
        folder: The folder of the job's first file, where relative paths are looked up before the working folder.
        probe: Asks the operating system.
    """
    paths = [
        *_look_for_inputs(job, document, framework, folder, probe),
        *(_look_at_folder(use, text, leaf, probe) for use, text, leaf in _list_folders(job)),
    ]
    ports = [
        LocalPort(number, leaf, probe.is_port_taken(number))
        for number, leaf in dict(_list_ports(document, framework)).items()
    ]
    return Machine(tuple(paths), tuple(ports), probe.shared_memory())


def _look_for_inputs(
    job: Job, document: Document, framework: Framework, folder: Path, probe: Probe
) -> Iterator[LocalPath]:
    """Yield the checkpoints and data that the job reads, as found on this machine."""
    for name in ("checkpoint.model", "checkpoint.trainer", "checkpoint.critic"):
        setting = job[name]
        # slime starts anew where --load has nothing yet: it is the folder of --save.
        is_resumed = setting.leaf is not None and setting.leaf.key == "--load"
        if setting.status == "set" and not is_resumed and (path := _as_path(setting.value, files=())):
            yield _look_for(path, "model", setting.leaf, folder, probe)
    for key in framework.data:
        found = resolve(document, key)
        if found is None or found.reason:
            continue
        for value in _list_texts(found.value):
            if path := _as_path(value, files=DATA_FILES):
                yield _look_for(path, "data", found.leaf, folder, probe)


def _list_texts(value: object) -> list[str]:
    """Return the texts of a value: a text, a list, or a list that is written as a text, as Hydra's overrides have it."""
    if isinstance(value, list):
        return [text for part in value for text in _list_texts(part)]
    if not isinstance(value, str):
        return []
    if value.startswith("[") and value.endswith("]"):
        return [part.strip().strip("'\"") for part in value[1:-1].split(",") if part.strip()]
    return [value]


def _as_path(value: object, files: tuple[str, ...]) -> str:
    """Return the path that a value names, "" for the name of a repository or dataset, and for what is elsewhere.

    files: ends of names that only files have.
    """
    text = SLICE.sub("", str(value))
    if REMOTE.match(text) or "\0" in text or "$" in text or "\n" in text:
        return ""
    return text if text.startswith(("/", "~", "./", "../")) or text.endswith(files) else ""


def _look_for(path: str, use: Use, leaf: Leaf | None, folder: Path, probe: Probe) -> LocalPath:
    """Return a path that the job reads, as found on this machine."""
    whole = _below(Path(expand_home(path)), probe)
    try:
        found = next(
            (each for each in ([whole] if whole.is_absolute() else [folder / whole, whole]) if path_exists(each)), None
        )
    except OSError as error:
        return LocalPath(use, path, leaf, f"cannot be looked at: {error.strerror}")
    if found is None:
        return LocalPath(use, path, leaf, "does not exist")
    if not os.access(found, os.R_OK):
        return LocalPath(use, path, leaf, "cannot be read by this user")
    return LocalPath(use, path, leaf)


def _list_folders(job: Job) -> Iterator[tuple[Use, str, Leaf | None]]:
    """Yield (use, path, leaf) for the folders that the job writes to."""
    uses: tuple[tuple[str, Use], ...] = (
        ("save.directory", "save"),
        ("update.directory", "update"),
        ("update.base", "update"),
    )
    for name, use in uses:
        text = job.text(name)
        if job[name].status == "set" and text and not REMOTE.match(text) and "$" not in text and "{" not in text:
            yield use, text, job[name].leaf


def _look_at_folder(use: Use, path: str, leaf: Leaf | None, probe: Probe) -> LocalPath:
    """Return whether the job can write to a folder, which need not exist, and how much is free there."""
    try:
        existing = _below(Path(expand_home(path)), probe)
        while not path_exists(existing) and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            return LocalPath(use, path, leaf, f"cannot be made: {_shown(existing, probe)} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            return LocalPath(use, path, leaf, f"cannot be written by this user ({_shown(existing, probe)})")
        return LocalPath(use, path, leaf, free=probe.free_bytes(existing))
    except (OSError, ValueError) as error:
        return LocalPath(use, path, leaf, f"cannot be looked at: {getattr(error, 'strerror', None) or error}")


def _below(path: Path, probe: Probe) -> Path:
    """Return a path below the probe's root, where it is absolute."""
    return probe.root / path.relative_to("/") if path.is_absolute() and probe.root != Path("/") else path


def _shown(path: Path, probe: Probe) -> str:
    """Write a path without the probe's root."""
    return f"/{path.relative_to(probe.root)}" if path.is_relative_to(probe.root) else str(path)


def _list_ports(document: Document, framework: Framework) -> Iterator[tuple[int, Leaf | None]]:
    """Yield (port, where it is written) for the ports on which the job listens."""
    for key, condition in framework.ports:
        if condition.startswith("!"):
            listens = resolve(document, condition[1:]) is None
        else:
            switch = resolve(document, condition) if condition else None
            listens = not condition or (switch is not None and switch.value is True)
        found = resolve(document, key)
        if listens and found is not None and not found.reason and (port := _as_port(found.value)):
            yield port, found.leaf
    for variable in WRITTEN:
        leaf: Leaf | None = document.environment.get(variable)
        if leaf is not None and not leaf.reason and (port := _as_port(leaf.value)):
            yield port, leaf


def _as_port(value: object) -> int:
    """Return a value as the number of a port; 0 where it is none, or one that the system chooses."""
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 6 and 0 < int(text) < 65536 else 0
