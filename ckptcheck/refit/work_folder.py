"""The folder for checkpoints that a run writes on its way."""

from __future__ import annotations

import shutil
from pathlib import Path

from ckptcheck.text.observer import Observer


def clean_up_folder(folder: Path, keep: bool, observer: Observer) -> None:
    """Remove a folder and its content, or say where it is kept."""
    if keep and any(folder.iterdir()):
        observer.log(f"kept {folder}")
        return
    if keep:
        observer.log("nothing was written that could be kept")
    shutil.rmtree(folder, ignore_errors=True)
