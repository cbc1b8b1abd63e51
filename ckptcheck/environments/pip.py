"""Runs pip inside an environment: what it says goes to a log, and its last words into the error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ckptcheck.environments.clean import clean_environment
from ckptcheck.errors import CkptcheckError

Progress = Callable[[int, int], None]
"""Told how many packages of how many pip has looked at."""


class Pip:
    """Pip of one environment."""

    def __init__(self, python: Path, log: IO[bytes], index: str | None = None) -> None:
        self._python = python
        self._log = log
        self._index = ["--index-url", index] if index else []

    def install(self, packages: Sequence[str], *options: str, progress: Progress | None = None) -> None:
        """Install packages without what they depend on. Raises CkptcheckError with pip's own last error."""
        command = [str(self._python), "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
        command += [*(self._index if "--index-url" not in options else ()), *options, *packages]
        said = self._run(command, len(packages), progress)
        if said is not None:
            raise CkptcheckError(f"pip could not install {_named(packages)}: {said}", f"its log is {self._log.name}")

    def _run(self, command: list[str], total: int, progress: Progress | None) -> str | None:
        """Return the last error, None when there was none."""
        self._log.write(f"\n$ {' '.join(command)}\n".encode())
        self._log.flush()
        looked, errors, last = 0, "", ""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment()
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._log.write(line)
                    text = line.decode(errors="replace").strip()
                    last = text or last
                    if text.startswith("ERROR:"):
                        errors = text.removeprefix("ERROR:").strip()
                    if text.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                        looked += 1
                        if progress is not None:
                            progress(min(looked, total), total)
            except BaseException:
                process.kill()
                raise
            finally:
                self._log.flush()
        code = process.returncode
        return None if code == 0 else errors or last or f"exit code {code}"


def _named(packages: Sequence[str]) -> str:
    return packages[0] if len(packages) == 1 else f"{len(packages)} packages"
