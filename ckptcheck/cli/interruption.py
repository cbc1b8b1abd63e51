"""Signals while far processes run: the first one ends the work, the others find it ending already."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C; kill, and what schedulers send; a terminal that was closed."""

DEAF = 60.0
"""Seconds after which a signal counts again: then something is stuck."""


class Interrupted(KeyboardInterrupt):
    """A signal arrived. Ends what Ctrl-C ends; its text names the signal."""


class Interruption:
    """Turns the first of these signals into `Interrupted`; one that comes soon after, as a second Ctrl-C, is overheard.

    So what ends processes and removes files is not cut short by an impatient user. It takes half a minute at most:
    the guardians of far processes (host/process.py) kill what does not end. Use as a context manager, in the main thread
    (elsewhere it does nothing), around all that has to be put away.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._deaf_until = 0.0

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for name in NAMES:
                if (number := getattr(signal, name, None)) is None:
                    continue
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and what runs in the background
                    self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def overhear(self) -> None:
        """From now on nothing is interrupted: all that is left to do is to put away."""
        self._deaf_until = math.inf

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() > self._deaf_until:
            self._deaf_until = time.monotonic() + DEAF
            name = signal.Signals(number).name
            raise Interrupted("interrupted" if name == "SIGINT" else f"interrupted by {name}")
