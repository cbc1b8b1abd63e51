"""A folder that shows ckptcheck's plug-ins to an engine whose Python does not have ckptcheck installed, only on its path."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.paths import ROOT


def write_plugin_site(folder: Path) -> Path:
    """Write a distribution that has the entry points of pyproject.toml, and return the folder for PYTHONPATH."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "ckptcheck_plugin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ckptcheck-plugin\nVersion: 0\n", encoding="utf-8")
    lines = [line for group, entries in groups.items() for line in (f"[{group}]", *map(" = ".join, entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
