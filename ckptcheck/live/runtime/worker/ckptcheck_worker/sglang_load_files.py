"""An SGLang plugin that keeps the file of a scheduler's load in the worker's folder, which is removed with the worker.

SGLang 0.5.23 (managers/load_snapshot.py) puts a file for each start into /dev/shm and never removes it.
"""

from __future__ import annotations

import os

FOLDER_VARIABLE = "CKPTCHECK_SGLANG_FOLDER"
"""The folder. An environment variable, because SGLang's processes inherit it."""


def register() -> None:
    """Move the file; does nothing if this SGLang has none."""
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        from sglang.srt.managers import load_snapshot
    except ImportError:
        return
    if folder and hasattr(load_snapshot, "shm_path_for"):
        load_snapshot.shm_path_for = lambda name: os.path.join(folder, f"loads_{os.path.basename(name)}.shm")
