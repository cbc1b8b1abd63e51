"""The client of a worker process: calls its functions, and outlives it."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ckptcheck.live.runtime.process.deadlines import compute_deadline, default_timeout
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.live.runtime.process.process import POLL_INTERVAL, Process
from ckptcheck.live.runtime.worker.ckptcheck_worker import wire

START_TIMEOUT = 300.0
"""Seconds for the worker to import its module: an engine on a cold disk takes a minute."""
GRACE = 10.0
"""Seconds in which the worker may end by itself."""
EXIT_WAIT = 5.0
"""Seconds to wait for the process to end after its socket closed; a process that lives on only closed the socket."""
RECEIVE_BYTES = 1 << 20


class WorkerClient:
    """A worker process that serves the functions of one module. Use it as a context manager, which ends all its processes.

    Args:
        python: the interpreter, of an environment or the user's own.
        module: a name in the package ``ckptcheck_worker`` ("ckptcheck_worker.env_report"), or the file of a module with a
            ``RPC_METHODS`` dict.
        name: for messages.
        env: added to the environment; None removes a variable. The caller's PYTHONPATH is not passed on.
        log: a file that keeps the output of the process; without it the output goes to a temporary file.
        scratch: folders of the caller that are removed if the caller is killed.
        start_timeout: seconds; None for `START_TIMEOUT`, or the rest of the time budget around the call (deadlines.py).
        template: a worker with the same arguments that has only imported, and is copied; it must live as long as its copies.

    Raises:
        RemoteError: the module cannot be imported, or the template cannot be copied safely.
        WorkerDied, WorkerTimeout: the process does not start.
        CkptcheckError: the Python cannot be run.
    """

    def __init__(
        self,
        python: Path,
        module: str | Path,
        *,
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
        start_timeout: float | None = None,
        template: WorkerClient | None = None,
    ) -> None:
        self.name = name or (module.stem if isinstance(module, Path) else module.rpartition(".")[2])
        self._process = Process(
            python, module, name=self.name, env=env or {}, log=log, scratch=scratch,
            fork=None if template is None else template._fork,
        )  # fmt: skip
        self._decoder = wire.FrameDecoder()
        self._request_id = 0
        self._busy = self._closed = False
        try:
            timeout = default_timeout(START_TIMEOUT) if start_timeout is None else start_timeout
            hello = self._receive(0, "start", compute_deadline(timeout))
        except BaseException:
            self.close(0)
            raise
        self._process.name_processes(hello["pid"], hello["supervisor"])
        self.python_version: str = hello["python"]
        self.methods: tuple[str, ...] = tuple(hello["methods"])

    @property
    def folder(self) -> Path:
        """A private folder that the client and the worker share until `close`."""
        return self._process.folder

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(GRACE if kind is None else 0)

    def call(self, method: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Call a function of the worker and return its result as JSON has it (a tuple comes back as a list).

        timeout: seconds, capped by the time budget around the call (deadlines.py); a process that takes longer is ended.

        Raises RemoteError when the function raised, WorkerDied when the process died, WorkerTimeout after the timeout, TypeError
        for arguments that JSON lacks.
        """
        return self._call(method, timeout, arguments)

    def _fork(self, descriptors: Sequence[int], arguments: dict[str, Any]) -> None:
        """Make the worker fork another one, which gets copies of the descriptors."""
        self._call("fork_worker", None, arguments, descriptors)

    def _call(
        self, method: str, timeout: float | None, arguments: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> Any:
        if self._closed:
            raise WorkerDied(f"{self.name} is closed")
        self._request_id += 1
        message = wire.encode({"id": self._request_id, "method": method, "arguments": arguments})
        deadline = compute_deadline(timeout)
        self._busy = True
        try:
            self._send(message, method, deadline, descriptors)
            return self._receive(self._request_id, method, deadline)
        except RemoteError:
            raise
        except BaseException:
            # also Ctrl-C: a late answer would belong to no request
            self.close(0)
            raise
        finally:
            self._busy = False

    def read_log_tail(self) -> tuple[str, ...]:
        """Return the last lines that the worker and its children printed."""
        return self._process.read_log_tail()

    def close(self, grace: float = GRACE) -> None:
        """End the worker and every process it started; may be called twice.

        The worker has `grace` seconds to end by itself, then gets SIGTERM, then SIGKILL. A worker that is busy with the call of
        another thread gets no grace: it does not read requests.
        """
        if not self._closed:
            self._closed = True
            self._process.close(0 if self._busy else grace)

    def _send(self, message: bytes, method: str, deadline: float | None, descriptors: Sequence[int]) -> None:
        unsent = memoryview(message)
        while unsent:
            self._check_deadline(method, deadline)
            try:
                control, part = self._process.control, unsent[:RECEIVE_BYTES]
                unsent = unsent[socket.send_fds(control, [part], descriptors) if descriptors else control.send(part) :]
                descriptors = ()
            except TimeoutError:
                continue
            except OSError:
                self._raise_died(method)

    def _receive(self, number: int, method: str, deadline: float | None) -> Any:
        """Wait for the reply to a request."""
        while True:
            self._check_deadline(method, deadline)
            # read before the socket, which may still hold the last message of a dead process
            is_alive = self._process.is_alive
            try:
                data = self._process.control.recv(RECEIVE_BYTES)
            except TimeoutError:
                # the worker is dead, and one of its children holds the socket open
                if not is_alive:
                    self._raise_died(method)
                continue
            except OSError:
                data = b""
            if not data:
                self._raise_died(method)
            for reply in self._decode(data, method):
                if reply["id"] != number:
                    continue
                if (error := reply.get("error")) is not None:
                    raise RemoteError(self.name, method, error["type"], error["message"], error["traceback"])
                return reply["result"]

    def _decode(self, data: bytes, method: str) -> list[dict[str, Any]]:
        try:
            return self._decoder.feed(data)
        except ValueError as error:
            raise WorkerDied(
                f"{self.name} sent a malformed answer to {method.replace('_', ' ')}: {error}", self.read_log_tail()
            ) from None

    def _check_deadline(self, method: str, deadline: float | None) -> None:
        """Limit the next send or receive to a short wait, so that a death is noticed. Raises WorkerTimeout after the deadline."""
        remaining = POLL_INTERVAL if deadline is None else min(POLL_INTERVAL, deadline - time.monotonic())
        if remaining <= 0:
            self._process.dump_threads()
            log_tail = self.read_log_tail()
            raise WorkerTimeout(
                f"{self.name} did not answer in time when asked to {method.replace('_', ' ')}, and was ended", log_tail
            )
        self._process.control.settimeout(remaining)

    def _raise_died(self, method: str) -> NoReturn:
        """Raise WorkerDied with the exit status and the end of the log."""
        self._process.wait(EXIT_WAIT)
        raise WorkerDied(
            f"{self.name} died ({self._process.describe_exit()}) when asked to {method.replace('_', ' ')}",
            self.read_log_tail(),
        )
