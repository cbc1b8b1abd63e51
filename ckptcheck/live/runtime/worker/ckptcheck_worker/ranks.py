"""Forks the ranks of a trainer from one process that has imported everything; the parent talks to each over a pipe."""

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
STRAGGLER_TIMEOUT = 20.0
"""Seconds that the other ranks have to answer after one raised; they may be waiting for it in a collective."""
EXIT_RANK_LOST = 70
"""Exit code of the process when a rank died (sysexits.h: internal error)."""


class Ranks:
    """Forked ranks. build_rank: called in rank `r`, builds the object whose methods are called.

    Without one of its ranks a model is useless, so the death of a rank ends this process, after it printed which rank and how.
    """

    def __init__(self, world: int, build_rank: Callable[[int], Any]) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[int] = []
        self._failure = ""
        for rank in range(world):
            parent_end, child_end = Pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            parent = os.getpid()
            process = os.fork()
            if process == 0:
                for other in (*self._pipes, parent_end):
                    other.close()
                _serve_rank(rank, child_end, build_rank, parent)
            child_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)
        try:
            self._collect("start")
        except RuntimeError:
            self.close()
            raise

    def call_all(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method on every rank and return the results by rank. Raises RuntimeError with the error of the first rank.

        After an error several ranks cannot be used again: a collective that one rank entered and another did not would be
        matched with a later one.
        """
        if self._failure:
            raise RuntimeError(f"the ranks are out of step since {self._failure}")
        message = json.dumps([method, arguments]).encode()
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError:
                self._exit_after_death(rank, method)
        return self._collect(method)

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

    def _collect(self, method: str) -> list[Any]:
        answers: dict[int, Any] = {}
        failed: dict[int, str] = {}
        end: float | None = None
        numbers = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while len(answers) + len(failed) < len(self._pipes):
            waiting = [pipe for pipe, rank in numbers.items() if rank not in answers and rank not in failed]
            ready = wait(waiting, None if end is None else max(0.0, end - time.monotonic()))
            if not ready:
                errors = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
                stuck = ", ".join(str(numbers[pipe]) for pipe in waiting)
                self._exit(f"rank {stuck} did not answer after {method} failed: {errors}")
            for pipe in ready:
                rank = numbers[pipe]  # type: ignore[index]
                try:
                    answer = json.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    self._exit_after_death(rank, method)
                if "error" in answer:
                    failed[rank] = answer["error"]
                    end = time.monotonic() + STRAGGLER_TIMEOUT
                else:
                    answers[rank] = answer["result"]
        if failed:
            rank, text = min(failed.items())
            if len(self._pipes) > 1:
                self._failure = f"{method} failed ({text})"
            raise RuntimeError(text if len(self._pipes) == 1 else f"rank {rank}: {text}")
        return [answers[rank] for rank in range(len(self._pipes))]

    def _exit_after_death(self, rank: int, method: str) -> NoReturn:
        # give the log time to receive the last output of the rank
        time.sleep(0.1)
        _, status = os.waitpid(self._processes[rank], 0)
        how = (
            signal.Signals(os.WTERMSIG(status)).name
            if os.WIFSIGNALED(status)
            else f"exit code {os.WEXITSTATUS(status)}"
        )
        self._processes.pop(rank)
        self._pipes.pop(rank).close()
        self._exit(f"rank {rank} died ({how}) when asked to {method}")

    def _exit(self, reason: str) -> NoReturn:
        sys.stderr.write(f"RuntimeError: {reason}\n")
        sys.stderr.flush()
        self.close()
        os._exit(EXIT_RANK_LOST)


def _serve_rank(rank: int, pipe: Connection, build_rank: Callable[[int], Any], parent: int) -> NoReturn:
    """Serve as a rank until the pipe closes. Never returns."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    subject: Any = None
    try:
        method = ""
        answer: dict[str, Any]
        arguments: dict[str, Any] = {}
        while True:
            try:
                if subject is None:
                    subject, answer = build_rank(rank), {"result": None}
                else:
                    answer = {"result": getattr(subject, method)(**arguments)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            pipe.send_bytes(json.dumps(answer).encode())
            method, arguments = json.loads(pipe.recv_bytes())
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
