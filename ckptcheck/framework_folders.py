"""Finds the folders of ``ckptcheck/frameworks/``: what is known of a framework is read from there and listed nowhere else."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "ckptcheck.frameworks"
# Named by strings, so that lower layers can ask for a file of a framework, which is a higher one.


def list_frameworks_with(file: str) -> list[str]:
    """Return the names of the folders that have a module, sorted: those of ``preflight`` are the frameworks whose jobs are read.

    file: the module's name, without ``.py``.
    """
    places = importlib.import_module(PACKAGE).__path__
    folders = sorted({each.name for each in pkgutil.iter_modules(places) if each.ispkg})
    return [name for name in folders if any((Path(place) / name / f"{file}.py").is_file() for place in places)]


@cache
def load_framework_file(name: str, file: str) -> Any:
    """Import one module of a framework's folder, and nothing of the others. Raises ModuleNotFoundError where there is none."""
    return importlib.import_module(f"{PACKAGE}.{name}.{file}")


def find_framework_data(name: str, file: str) -> Path | None:
    """Return the path of a data file of a framework's folder, None where there is none. name: as reports or folders spell it."""
    folder = name.replace("-", "_")
    places = importlib.import_module(PACKAGE).__path__
    return next((path for place in places if (path := Path(place) / folder / file).is_file()), None)
