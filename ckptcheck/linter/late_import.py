"""Imports a function on first use, where an import at the top would close a circle or slow every run down."""

from __future__ import annotations

import importlib
from typing import Any


def load_function(path: str) -> Any:
    """Return the function that ``module:function`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
