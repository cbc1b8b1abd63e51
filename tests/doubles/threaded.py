"""A worker module that starts a thread while it is imported, as libraries do that compute with several."""

from __future__ import annotations

import os
import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def prepare() -> None:
    """Import nothing."""


RPC_METHODS = {"prepare": prepare, "pid": os.getpid}
