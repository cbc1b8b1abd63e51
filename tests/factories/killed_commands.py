"""The command, run whole on real engines, so that they can be killed under it; what it leaves is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import live
import pytest


class Command:
    """``ckptcheck refit`` of a tiny model in a temporary folder of its own; what runs below it is found by a mark, or its parents.

    SGLang's processes write their names over their environment, so those bear no mark.
    """

    def __init__(self, folder: Path, *arguments: str, model: str = "llama") -> None:
        self.mark, self.temporary = uuid.uuid4().hex, folder / "tmp"
        self.temporary.mkdir()
        source = live.write(model, folder / "model")
        environment = {**os.environ, "TMPDIR": str(self.temporary), "CELL": self.mark}
        command = [sys.executable, "-m", "ckptcheck", "refit", str(source), "--format", "json", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self.scratch: set[str] = set()

    def until(self, phase: str) -> None:
        """Read what it says until it says that."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line == f"{phase}\n":
                break
        else:
            pytest.fail("".join(self.said))
        for words in self.running().values():
            self.scratch |= {word for word in words if word.startswith(("/dev/shm/ckptcheck", "/tmp/ckptcheck"))}

    def running(self) -> dict[int, list[str]]:
        """Return the processes with their command lines."""
        found = {}
        for place in Path("/proc").iterdir():
            try:
                if place.name.isdigit() and self.mark.encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
        return found

    def below(self, name: str) -> list[int]:
        """Return the processes below the command whose name (15 characters of it) begins so."""
        titles: dict[int, str] = {}
        children: dict[int, list[int]] = {}
        for place in Path("/proc").iterdir():
            try:
                if place.name.isdigit():
                    titles[int(place.name)], _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
                    children.setdefault(int(rest.split()[1]), []).append(int(place.name))
            except OSError:
                continue
        below = [self.process.pid]
        for process in below:
            below += children.get(process, [])
        return [process for process in below if titles.get(process, "").startswith(name)]

    def of(self, module: str) -> list[int]:
        """Return the processes of a far side, the guardian first, then it, then its ranks."""
        return sorted(process for process, words in self.running().items() if f"ckptcheck_worker.{module}" in words)

    def report(self) -> dict[str, Any]:
        """Return the report once it has ended, and see that nothing is left."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 2, err
        assert self.running() == {}
        assert [path.name for path in self.temporary.iterdir()] == []
        assert not any(Path(folder).exists() for folder in self.scratch)
        assert "Traceback" not in err.replace("  | Traceback", "")
        found: dict[str, Any] = json.loads(out)
        assert found["verdict"] == "incomplete"
        return found

    def why(self) -> str:
        report = self.report()
        return str(report.get("error") or report["crashed"][0]["error"])
