"""Doors of safetensors headers and indexes: both ways of reading agree with each other and with safetensors."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.fuzz import CHECKPOINTS, check_header, check_index, check_scan, check_verdict, random_file, random_text

WHOLE = 10
"""One header of so many goes through a whole scan with every reporter, which takes a hundred times as long."""
INDEX = CHECKPOINTS / "tiny-llama-sharded" / "model.safetensors.index.json"


def check_safetensors(seed: int, folder: Path) -> None:
    """Make up a file; read it both ways and as safetensors does, and scan some."""
    raw = random_file(random.Random(seed))
    check_header(raw)
    if seed % WHOLE == 0:
        (folder / "model.safetensors").write_bytes(raw)
        report = check_scan(folder)
        assert report is not None
        check_verdict(report, raw)


def check_weight_map(seed: int, folder: Path) -> None:
    """Change an index; read it both ways, and scan some checkpoints with one."""
    raw = random_text(json.loads(INDEX.read_bytes()), random.Random(seed))
    check_index(raw)
    if seed % WHOLE == 0:
        for file in INDEX.parent.iterdir():
            (folder / file.name).write_bytes(raw if file.name == INDEX.name else file.read_bytes())
        check_scan(folder)
