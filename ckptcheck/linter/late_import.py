"""Imports a function when it is first called for, where an import at the top would close a circle or cost every run."""

from __future__ import annotations

import importlib
from typing import Any


def load_function(path: str) -> Any:
    """Return the function that ``module:function`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
