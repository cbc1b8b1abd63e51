"""Runs pip inside an environment. Its output goes to a log, and its last error into the exception."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ckptcheck.errors import CkptcheckError
from ckptcheck.runners.child_python import start_python

Progress = Callable[[int, int], None]
"""Gets the number of packages that pip has processed, and of all packages."""


class Pip:
    """Pip of one environment."""

    def __init__(self, python: Path, log: IO[bytes], index: str | None = None) -> None:
        self._python = python
        self._log = log
        self._index = ["--index-url", index] if index else []

    def install(self, packages: Sequence[str], *options: str, progress: Progress | None = None) -> None:
        """Install packages without their dependencies. Raises CkptcheckError with pip's own last error."""
        command = ["-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
        command += [*(self._index if "--index-url" not in options else ()), *options, *packages]
        error = self._run(command, len(packages), progress)
        if error is not None:
            raise CkptcheckError(
                f"pip could not install {_describe_packages(packages)}: {error}", f"its log is {self._log.name}"
            )

    def _run(self, command: list[str], total: int, progress: Progress | None) -> str | None:
        """Run a command and return its last error, None if it succeeded."""
        self._log.write(f"\n$ {self._python} {' '.join(command)}\n".encode())
        self._log.flush()
        processed, last_error, last_line = 0, "", ""
        with start_python(
            command, self._python, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._log.write(line)
                    text = line.decode(errors="replace").strip()
                    last_line = text or last_line
                    if text.startswith("ERROR:"):
                        last_error = text.removeprefix("ERROR:").strip()
                    if text.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                        processed += 1
                        if progress is not None:
                            progress(min(processed, total), total)
            except BaseException:
                process.kill()
                raise
            finally:
                self._log.flush()
        code = process.returncode
        return None if code == 0 else last_error or last_line or f"exit code {code}"


def _describe_packages(packages: Sequence[str]) -> str:
    return packages[0] if len(packages) == 1 else f"{len(packages)} packages"
