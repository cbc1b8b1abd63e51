"""A thread beside the job, in which a watch does what need not hold up a sync: digests of copies, rules, the record, metrics."""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

MOST_WAITING = 4
"""Syncs that wait to be checked. Where more do, the job's steps are shorter than the checks."""
POLL_SECONDS = 0.02
"""Seconds between the thread's looks for an action. To be woken by the job's thread would cost that thread up to milliseconds."""
IDLE_SECONDS = 600.0
"""Seconds after which a thread without an action ends; the next action begins another."""
EXIT_PATIENCE = 120.0
"""Seconds for which the end of the process waits for checks: a busy machine loses none of them, and a disk that hangs ends it."""


class BackgroundThread:
    """Runs actions one after the other in a daemon thread.

    The thread begins with the first action. A process that was forked begins one of its own, and leaves the actions of its parent
    to its parent. exit_patience: seconds for which the end of the process waits for the actions.
    """

    def __init__(self, exit_patience: float = EXIT_PATIENCE) -> None:
        self.exit_patience = exit_patience
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._actions: deque[Callable[[], object]] = deque()
        self._is_running = False
        self._thread: threading.Thread | None = None

    def submit(self, action: Callable[[], object], patience: float, *, always: bool = False) -> bool:
        """Have an action run, and return whether it will.

        It sees the context variables of the caller. It is refused where `MOST_WAITING` still wait after `patience` seconds, unless
        it always has to run: then it must hold little memory while it waits.
        Raises RuntimeError where no thread can begin: the interpreter ends, or the process may have no more.
        """
        if self._process != os.getpid():
            self._begin()
        with self._changed:
            if not always and not self._changed.wait_for(lambda: len(self._actions) < MOST_WAITING, patience):
                return False
            self._actions.append(partial(contextvars.copy_context().run, action))
            if self._thread is None:
                thread = threading.Thread(target=self._run, daemon=True, name="ckptcheck-watch")
                try:
                    thread.start()
                except RuntimeError:
                    self._actions.clear()
                    raise
                self._thread = thread
                _threads.add(self)
        return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until every action has run, at most so many seconds; return whether it has. The thread itself never waits."""
        if self._process != os.getpid() or threading.current_thread() is self._thread:
            return True
        with self._changed:
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._actions and not self._is_running, seconds)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                if not self._actions:
                    if time.monotonic() - idle_since > IDLE_SECONDS:
                        self._thread = None
                        return
                    self._changed.wait(POLL_SECONDS)
                    continue
                action = self._actions.popleft()
                self._is_running = True
                self._changed.notify_all()
            try:
                # an action reports its own failures; a warning that a filter turns into an error ends here
                with suppress(Exception):
                    action()
            finally:
                del action
                idle_since = time.monotonic()
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()


_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


@atexit.register
def _wait_for_checks() -> None:
    """Let the checks of the last syncs end before the process does."""
    for thread in list(_threads):
        thread.wait(thread.exit_patience)
