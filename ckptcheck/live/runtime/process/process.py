"""Starts, watches and ends the operating-system process of a worker and its supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.runners.child_python import start_python
from ckptcheck.text.file_io import real_path

Fork = Callable[[Sequence[int], dict[str, Any]], object]
"""Asks a running worker to fork another one: the descriptors of its control, lifeline and log, and the other arguments."""

WORKER_FOLDER = Path(__file__).parent.parent / "worker"
VARIABLES = {
    "PYTHONPATH": str(WORKER_FOLDER),
    # the last lines before a death are not lost in a buffer
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
}
REAP_TIMEOUT = 15.0
"""Seconds for the supervisor to end everything (it takes 3 + 3 at most)."""
POLL_INTERVAL = 0.1
TAIL_BYTES = 16384
"""Bytes at the end of the log that are read."""
TAIL_LINES, TAIL_WIDTH = 60, 500
"""At most so many lines, each cut to so many characters: engines print their whole configuration in one line."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class Process:
    """A worker process. control: the socket to it. Its standard output and error go to a log; it has no standard input.

    The worker and its children run in sessions of their own, so a Ctrl-C in this terminal does not reach them, and signals that
    they send to their own group or to their parent's children do not reach this process. fork: makes another worker fork this one;
    None starts it. Raises CkptcheckError for a Python that cannot be run, and what `fork` raises.
    """

    def __init__(
        self,
        python: Path,
        module: str | Path,
        *,
        name: str,
        env: Mapping[str, str | None],
        log: Path | None,
        scratch: Sequence[Path],
        fork: Fork | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"ckptcheck-{name}-"))
        self.pid: int | None = None
        self._log = log or self.folder / "log"
        work_folder = self.folder / "work"
        work_folder.mkdir()
        file = real_path(module) if isinstance(module, Path) else None
        self.control, control = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        self._process: subprocess.Popen[bytes] | ForkedSupervisor
        folders = [str(folder) for folder in (self.folder, *scratch)]
        command = ["-m", "ckptcheck_worker", str(control.fileno()), str(lifeline.fileno())]
        command += [file.stem, str(file)] if file else [str(module), ""]
        variables = _tmpdir_variables(work_folder)
        try:
            with self._log.open("ab") as log_file, control, lifeline:
                if fork is not None:
                    descriptors = [control.fileno(), lifeline.fileno(), log_file.fileno()]
                    fork(descriptors, {"work_folder": str(work_folder), "variables": variables, "scratch": folders})
                    self._process = ForkedSupervisor(self._lifeline)
                else:
                    self._process = start_python(
                        [*command, *folders],
                        python,
                        stdin=subprocess.DEVNULL,
                        stdout=log_file,
                        stderr=subprocess.STDOUT,
                        pass_fds=(control.fileno(), lifeline.fileno()),
                        start_new_session=True,
                        cwd=work_folder,
                        env={**VARIABLES, **variables, **env},
                    )
        except OSError as error:
            self._release()
            raise CkptcheckError(f"cannot run {python}: {error.strerror or error}") from error
        except CkptcheckError:
            self._release()
            raise

    def name_processes(self, pid: int, supervisor: int) -> None:
        """Record the ids of the processes, which the worker reports once it runs."""
        self.pid = pid
        if isinstance(self._process, ForkedSupervisor):
            self._process.pid = supervisor

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor runs; it ends last."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Wait for the process to end; return whether it ended in time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def describe_exit(self) -> str:
        """Describe how the process ended."""
        code = self._process.poll()
        if code is None:
            return "it closed its connection"
        # the supervisor exits with 128 + the signal that ended the worker
        number = -code if code < 0 else code - 128
        with contextlib.suppress(ValueError):
            name = signal.Signals(number).name
            return f"{name}: out of memory, or killed by somebody" if number == signal.SIGKILL else name
        return f"exit code {code}"

    def read_log_tail(self) -> tuple[str, ...]:
        """Return the last lines that the worker and its children printed."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        lines = (ESCAPE.sub("", line).rstrip() for line in re.split(r"\r\n|\r|\n", text))
        return tuple(line[:TAIL_WIDTH] for line in lines if line)[-TAIL_LINES:]

    def dump_threads(self) -> None:
        """Make the worker write the stack of each of its threads to its log, if it still can."""
        if self.pid is None:
            return
        with contextlib.suppress(OSError):
            before = self._log.stat().st_size
            os.kill(self.pid, signal.SIGUSR1)
            for _ in range(20):
                time.sleep(POLL_INTERVAL)
                if self._log.stat().st_size > before:
                    return

    def close(self, grace: float) -> None:
        """End the worker and every process it started: by itself within `grace` seconds, then by SIGTERM, then by SIGKILL."""
        try:
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_WR)
            if grace:
                self.wait(grace)
        finally:
            with contextlib.suppress(OSError):
                # tells the supervisor that this process lives and removes the folders itself
                self._lifeline.send(b"e")
            try:
                self._reap()
            finally:
                self._release()

    def _reap(self) -> None:
        # the supervisor is stopped, or waits for a process that hangs in the kernel
        if not self.wait(REAP_TIMEOUT):
            self._process.kill()
            self._process.wait()
        # the supervisor itself was killed
        if self.pid is not None and (self._process.returncode or 0) < 0:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def _release(self) -> None:
        self.control.close()
        self._lifeline.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class ForkedSupervisor:
    """The `subprocess.Popen` of the supervisor of a worker that another worker forked, and which is no child of this process.

    It sends its exit code through its lifeline and closes it. A killed supervisor sends no code; it counts as ended by SIGKILL.
    """

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        self.pid: int | None = None
        """Its process; None until the worker has said hello."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        if self.returncode is None:
            try:
                code = self._lifeline.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                code = b""
            self.returncode = code[0] if code else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. timeout: seconds. Raises subprocess.TimeoutExpired after them."""
        if self.returncode is None:
            select.select([self._lifeline], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("ckptcheck_worker", timeout or 0)
        return code

    def kill(self) -> None:
        """Kill it, if it runs and has sent its process id."""
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _tmpdir_variables(work_folder: Path) -> dict[str, str]:
    """Return a TMPDIR in the worker's folder, so that the sockets and caches of a killed engine are removed with it.

    Only if the path leaves room for the name of a socket, 104 bytes on some systems.
    """
    return {"TMPDIR": str(work_folder)} if len(os.fsencode(work_folder)) <= 66 else {}
