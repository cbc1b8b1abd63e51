"""Says what an environment really has: by importing it."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any


def imported(module: str) -> dict[str, Any]:
    """Import a module and say what it calls its version and where it lies."""
    found = importlib.import_module(module)
    return {"version": getattr(found, "__version__", None), "file": getattr(found, "__file__", None)}


def versions(packages: list[str]) -> dict[str, str | None]:
    """Return the version of each package as its metadata has it, None for one that is not installed."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


VERBS = {"imported": imported, "versions": versions}
