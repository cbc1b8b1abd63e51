"""Handles signals while worker processes run: the first one ends the work, later ones do not interrupt the clean-up."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, ClassVar

SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C; kill, and what schedulers send; a terminal that was closed."""

IGNORE_SECONDS = 60.0
"""Seconds after a signal in which further ones are ignored. After that a signal counts again: the clean-up hangs."""


class SignalInterrupt(KeyboardInterrupt):
    """A signal arrived. Ends what Ctrl-C ends; its text names the signal."""


class SignalGuard:
    """Turns the first of these signals into `SignalInterrupt` and ignores one that follows soon, as a second Ctrl-C.

    So an impatient user does not cut short the code that ends processes and removes files. That code takes half a minute at
    most: the supervisors of worker processes (process/process.py) kill what does not end. Use it as a context manager, in the
    main thread (elsewhere it does nothing), around the work and its clean-up.
    """

    was_interrupted: ClassVar[bool] = False
    """Whether Ctrl-C ended the work of any guard of this process, so that the command can exit as after Ctrl-C."""

    def __init__(self) -> None:
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._ignore_until = 0.0

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for name in SIGNAL_NAMES:
                if (number := getattr(signal, name, None)) is None:
                    continue
                # SIG_IGN: set by nohup, and for processes in the background
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def ignore_signals(self) -> None:
        """Ignore every signal from now on: only the clean-up remains."""
        self._ignore_until = math.inf

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() > self._ignore_until:
            self._ignore_until = time.monotonic() + IGNORE_SECONDS
            name = signal.Signals(number).name
            SignalGuard.was_interrupted = name == "SIGINT"
            raise SignalInterrupt("interrupted" if name == "SIGINT" else f"interrupted by {name}")
