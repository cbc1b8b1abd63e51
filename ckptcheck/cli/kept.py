"""What a command writes on its way, and what becomes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from ckptcheck.cli.output import talk


def put_away(folder: Path, keep: bool) -> None:
    """Remove a folder with what is in it, or say where it is kept."""
    if keep and any(folder.iterdir()):
        talk(f"kept {folder}")
        return
    if keep:
        talk("nothing was written that could be kept")
    shutil.rmtree(folder, ignore_errors=True)
