"""Reports the packages of an environment, by importing them."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any


def import_module(module: str) -> dict[str, Any]:
    """Import a module and return its version and its file."""
    imported = importlib.import_module(module)
    return {"version": getattr(imported, "__version__", None), "file": getattr(imported, "__file__", None)}


def package_versions(packages: list[str]) -> dict[str, str | None]:
    """Return the version of each package from its metadata, None for one that is not installed."""
    return {name: _version(name) for name in packages}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


RPC_METHODS = {"imported": import_module, "versions": package_versions}
