"""The near side: asks the far process for verbs, and outlives it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ckptcheck.host.far.ckptcheck_far import wire
from ckptcheck.host.patience import deadline, otherwise
from ckptcheck.host.process import STEP, Process
from ckptcheck.host.trouble import HostDied, HostHung, VerbError

START = 300.0
"""Seconds until the module of verbs has to be imported: an engine on a cold disk takes a minute."""
GRACE = 10.0
"""Seconds in which the far process may end by itself."""
END = 5.0
"""Seconds between the end of the wire and that of the process; one that lives on only closed it."""
PIECE = 1 << 20


class Host:
    """A process that serves the verbs of one module. Use as a context manager: on the way out nothing of it is left.

    python: the interpreter, of an environment or the user's own. module: a name in the package ``ckptcheck_far``
    ("ckptcheck_far.about"), or the file of a module with a ``VERBS`` dict. name: for messages. env: added to the
    environment, None takes a variable away; the caller's PYTHONPATH is not passed on. cwd: a private folder unless
    given. log: a file for what the process prints, kept; without one it is read for the last words and removed.
    scratch: folders of the caller's that are removed if the caller is killed. start_timeout: seconds, None for `START` or what a
    block around it leaves (patience.py).

    Raises VerbError when the module cannot be imported, HostDied or HostHung when the process does not start,
    CkptcheckError for a Python that cannot be run.
    """

    def __init__(
        self,
        python: Path,
        module: str | Path,
        *,
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
        start_timeout: float | None = None,
    ) -> None:
        self.name = name or (module.stem if isinstance(module, Path) else module.rpartition(".")[2])
        self._process = Process(python, module, name=self.name, env=env or {}, cwd=cwd, log=log, scratch=scratch)
        self._inbox = wire.Inbox()
        self._number = 0
        self._busy = self._closed = False
        try:
            here = self._receive(0, "start", deadline(otherwise(START) if start_timeout is None else start_timeout))
        except BaseException:
            self.close(0)
            raise
        self._process.pid = here["pid"]
        self.python_version: str = here["python"]
        self.verbs: tuple[str, ...] = tuple(here["verbs"])

    @property
    def folder(self) -> Path:
        """A private folder that both sides see, until the host is closed."""
        return self._process.folder

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(GRACE if kind is None else 0)

    def call(self, verb: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Ask for a verb and return what it returns, as JSON says it (a tuple comes back as a list).

        timeout: seconds, less where a block around it leaves less (patience.py); a process that takes longer is ended.
        Raises VerbError when the verb raised, HostDied when the process died over it, HostHung after the timeout, TypeError
        for arguments that JSON cannot say.
        """
        if self._closed:
            raise HostDied(f"{self.name} is closed")
        self._number += 1
        message = wire.encode({"id": self._number, "verb": verb, "arguments": arguments})
        end = deadline(timeout)
        self._busy = True
        try:
            self._send(message, verb, end)
            return self._receive(self._number, verb, end)
        except VerbError:
            raise
        except BaseException:  # also Ctrl-C: what it still answers would be an answer to nothing
            self.close(0)
            raise
        finally:
            self._busy = False

    def last_words(self) -> tuple[str, ...]:
        """Return the last lines that the process and its children printed."""
        return self._process.last_words()

    def close(self, grace: float = GRACE) -> None:
        """End the process and all it started; may be called twice.

        It may first end by itself within `grace` seconds, then it is asked to (SIGTERM), and then it is killed. One that
        is at work, asked by another thread, is not waited for: it does not listen.
        """
        if not self._closed:
            self._closed = True
            self._process.close(0 if self._busy else grace)

    def _send(self, message: bytes, verb: str, end: float | None) -> None:
        left = memoryview(message)
        while left:
            self._patience(verb, end)
            try:
                left = left[self._process.control.send(left[:PIECE]) :]
            except TimeoutError:
                continue
            except OSError:
                self._mourn(verb)

    def _receive(self, number: int, verb: str, end: float | None) -> Any:
        """Wait for the reply of that number."""
        while True:
            self._patience(verb, end)
            alive = self._process.alive  # looked at before: what it said last may still be in the socket
            try:
                piece = self._process.control.recv(PIECE)
            except TimeoutError:
                if not alive:  # a child of its holds the socket open
                    self._mourn(verb)
                continue
            except OSError:
                piece = b""
            if not piece:
                self._mourn(verb)
            for reply in self._read(piece, verb):
                if reply["id"] != number:
                    continue
                if (error := reply.get("error")) is not None:
                    raise VerbError(self.name, verb, error["type"], error["message"], error["traceback"])
                return reply["result"]

    def _read(self, piece: bytes, verb: str) -> list[dict[str, Any]]:
        try:
            return self._inbox.feed(piece)
        except ValueError as error:
            raise HostDied(f"{self.name} answered nonsense to {verb}: {error}", self.last_words()) from None

    def _patience(self, verb: str, end: float | None) -> None:
        """Let the next send or receive wait a moment, so that a death is noticed. Raises HostHung when time is up."""
        left = STEP if end is None else min(STEP, end - time.monotonic())
        if left <= 0:
            self._process.where()
            words = self.last_words()
            raise HostHung(f"{self.name} did not answer in time when asked to {verb}, and was ended", words)
        self._process.control.settimeout(left)

    def _mourn(self, verb: str) -> NoReturn:
        """Raise HostDied with how it died and what it said last."""
        self._process.wait(END)
        raise HostDied(f"{self.name} died ({self._process.ending()}) when asked to {verb}", self.last_words())
