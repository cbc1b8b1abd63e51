"""Ranks: processes forked from one that has imported everything, each at the end of a pipe. They live and die together."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

PARENT_DEATH = 1
"""PR_SET_PDEATHSIG, linux/prctl.h."""
GRACE = 20.0
"""Seconds after one rank raised in which the others have to come back; they may wait for it in a collective."""
ENDED = 70
"""Exit code of the process when a rank is no more (sysexits.h: internal error)."""


class Ranks:
    """Forked ranks. make: builds in rank `r` the object whose methods are asked for.

    Nothing of a model is left when one rank is gone, so its death ends this process, after saying which and how.
    """

    def __init__(self, world: int, make: Callable[[int], Any]) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[int] = []
        self._failed = ""
        for rank in range(world):
            mine, its = Pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            parent = os.getpid()
            process = os.fork()
            if process == 0:
                for other in (*self._pipes, mine):
                    other.close()
                _live(rank, its, make, parent)
            its.close()
            self._pipes.append(mine)
            self._processes.append(process)
        try:
            self._answers("start")
        except RuntimeError:
            self.close()
            raise

    def ask(self, verb: str, **arguments: Any) -> list[Any]:
        """Have every rank do the same and return what each returned. Raises RuntimeError with what the first said.

        After that several ranks are of no use any more: what one sent and another did not take would be taken for
        an answer to something else.
        """
        if self._failed:
            raise RuntimeError(f"the ranks are out of step since {self._failed}")
        message = json.dumps([verb, arguments]).encode()
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError:
                self._mourn(rank, verb)
        return self._answers(verb)

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            with contextlib.suppress(OSError):
                os.waitpid(process, 0)
            pipe.close()
        self._processes, self._pipes = [], []

    def _answers(self, verb: str) -> list[Any]:
        answers: dict[int, Any] = {}
        failed: dict[int, str] = {}
        end: float | None = None
        numbers = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while len(answers) + len(failed) < len(self._pipes):
            waiting = [pipe for pipe, rank in numbers.items() if rank not in answers and rank not in failed]
            ready = wait(waiting, None if end is None else max(0.0, end - time.monotonic()))
            if not ready:
                said = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
                stuck = ", ".join(str(numbers[pipe]) for pipe in waiting)
                self._end(f"rank {stuck} waits for what will not come, after {verb} failed: {said}")
            for pipe in ready:
                rank = numbers[pipe]  # type: ignore[index]
                try:
                    answer = json.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    self._mourn(rank, verb)
                if "error" in answer:
                    failed[rank] = answer["error"]
                    end = time.monotonic() + GRACE
                else:
                    answers[rank] = answer["result"]
        if failed:
            rank, text = min(failed.items())
            if len(self._pipes) > 1:
                self._failed = f"{verb} failed ({text})"
            raise RuntimeError(text if len(self._pipes) == 1 else f"rank {rank}: {text}")
        return [answers[rank] for rank in range(len(self._pipes))]

    def _mourn(self, rank: int, verb: str) -> NoReturn:
        time.sleep(0.1)  # what it printed last is in the log by then
        _, status = os.waitpid(self._processes[rank], 0)
        how = (
            signal.Signals(os.WTERMSIG(status)).name
            if os.WIFSIGNALED(status)
            else f"exit code {os.WEXITSTATUS(status)}"
        )
        self._processes.pop(rank)
        self._pipes.pop(rank).close()
        self._end(f"rank {rank} died ({how}) when asked to {verb}")

    def _end(self, why: str) -> NoReturn:
        sys.stderr.write(f"RuntimeError: {why}\n")
        sys.stderr.flush()
        self.close()
        os._exit(ENDED)


def _live(rank: int, pipe: Connection, make: Callable[[int], Any], parent: int) -> NoReturn:
    """Be a rank: answer until the pipe ends. Never returns."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    subject: Any = None
    try:
        verb = ""
        answer: dict[str, Any]
        arguments: dict[str, Any] = {}
        while True:
            try:
                if subject is None:
                    subject, answer = make(rank), {"result": None}
                else:
                    answer = {"result": getattr(subject, verb)(**arguments)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            pipe.send_bytes(json.dumps(answer).encode())
            verb, arguments = json.loads(pipe.recv_bytes())
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
