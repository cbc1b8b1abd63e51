"""The far process and its guardian as the system sees them: started, listened to, ended."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckptcheck.environments.clean import clean_environment
from ckptcheck.errors import CkptcheckError

FAR = Path(__file__).parent / "far"
BURIAL = 15.0
"""Seconds in which the guardian has ended everything (it takes 3 + 3 at most)."""
STEP = 0.1
WORDS = 16384
"""Bytes of the log that count as last words."""
LINES, WIDTH = 60, 500
"""At most so many lines of so many characters: engines dump their whole configuration in one."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class Process:
    """A far process. control: the socket to it. Its standard output and error go to a log; it gets no input.

    It and all it starts are in sessions of their own, so neither a Ctrl-C of ours reaches it nor a signal to its own
    process group, or its parent's children, us. Raises CkptcheckError for a Python that cannot be run.
    """

    def __init__(
        self,
        python: Path,
        module: str | Path,
        *,
        name: str,
        env: Mapping[str, str | None],
        cwd: Path | None,
        log: Path | None,
        scratch: Sequence[Path],
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"ckptcheck-{name}-"))
        self.pid: int | None = None
        self._log = log or self.folder / "log"
        work = self.folder / "work"
        work.mkdir()
        file = module.resolve() if isinstance(module, Path) else None
        self.control, control = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        command = [str(python), "-m", "ckptcheck_far", str(control.fileno()), str(lifeline.fileno())]
        command += [file.stem, str(file)] if file else [str(module), ""]
        try:
            with self._log.open("ab") as out, control, lifeline:
                self._process = subprocess.Popen(
                    [*command, *map(str, (self.folder, *scratch))],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=(control.fileno(), lifeline.fileno()),
                    start_new_session=True,
                    cwd=cwd or work,
                    env=_environment({**_temporary(work), **env}),
                )
        except OSError as error:
            self._forget()
            raise CkptcheckError(f"cannot run {python}: {error.strerror or error}") from error

    @property
    def alive(self) -> bool:
        """Whether its guardian lives, which ends once all else has."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ending(self) -> str:
        """Say how it ended."""
        code = self._process.poll()
        if code is None:
            return "it closed its end"
        number = -code if code < 0 else code - 128  # the guardian ends with 128 + the signal that ended the process
        with contextlib.suppress(ValueError):
            name = signal.Signals(number).name
            return f"{name}: out of memory, or killed by somebody" if number == signal.SIGKILL else name
        return f"exit code {code}"

    def last_words(self) -> tuple[str, ...]:
        """Return the last lines that the process and its children printed."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - WORDS))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        lines = (ESCAPE.sub("", line).rstrip() for line in re.split(r"\r\n|\r|\n", text))
        return tuple(line[:WIDTH] for line in lines if line)[-LINES:]

    def where(self) -> None:
        """Have it write to its log where each of its threads is, if it still can."""
        if self.pid is None:
            return
        with contextlib.suppress(OSError):
            before = self._log.stat().st_size
            os.kill(self.pid, signal.SIGUSR1)
            for _ in range(20):
                time.sleep(STEP)
                if self._log.stat().st_size > before:
                    return

    def close(self, grace: float) -> None:
        """End it and all it started: by itself within `grace` seconds, then by SIGTERM, then by SIGKILL."""
        try:
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_WR)
            if grace:
                self.wait(grace)
        finally:
            with contextlib.suppress(OSError):
                self._lifeline.send(b"e")  # we are there and remove the folders; silence would mean that we are not
            self._lifeline.close()
            try:
                self._bury()
            finally:
                self._forget()

    def _bury(self) -> None:
        if not self.wait(BURIAL):  # the guardian was stopped, or what it waits for is stuck in the kernel
            self._process.kill()
            self._process.wait()
        if self.pid is not None and self._process.returncode < 0:  # the guardian itself was killed
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def _forget(self) -> None:
        self.control.close()
        self._lifeline.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _temporary(work: Path) -> dict[str, str]:
    """Have its temporary files go with it: engines that are killed leave sockets and caches behind.

    Only where the name leaves room for that of a socket, 104 bytes on some systems.
    """
    return {"TMPDIR": str(work)} if len(os.fsencode(work)) <= 66 else {}


def _environment(added: Mapping[str, str | None]) -> dict[str, str]:
    environment = clean_environment()
    environment["PYTHONPATH"] = str(FAR)
    environment["PYTHONUNBUFFERED"] = "1"  # last words are not lost in a buffer
    environment["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    for key, value in added.items():
        if value is None:
            environment.pop(key, None)
        else:
            environment[key] = value
    return environment
