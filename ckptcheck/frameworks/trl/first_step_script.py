"""Runs a script that builds its trainer in Python for one step: ``python first_step_script.py SETTINGS SCRIPT ARGUMENTS…``.

It runs in the job's own Python, alone. SETTINGS is JSON: name of an argument of the trainer → its value as text. They are set when
the script makes a trainer (`transformers.Trainer.__init__`, which those of TRL call with their arguments).
"""

from __future__ import annotations

import enum
import functools
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MODULE = "transformers.trainer"


def convert(old: Any, text: str) -> Any:
    """Return a value of the kind that the argument has."""
    if isinstance(old, bool):
        return text == "True"
    if isinstance(old, enum.Enum):
        return type(old)(text)
    if isinstance(old, list):
        return [] if text == "none" else [text]
    return type(old)(text) if isinstance(old, (int, float)) else text


class _Loader(importlib.abc.Loader):
    """Loads the trainers' module, and has each trainer take the settings."""

    def __init__(self, loader: importlib.abc.Loader, settings: dict[str, str]) -> None:
        self._loader, self._settings = loader, settings

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave the making of the module to its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and change its trainer."""
        self._loader.exec_module(module)
        initialize = module.Trainer.__init__
        settings = self._settings

        @functools.wraps(initialize)
        def with_settings(self: Any, *arguments: Any, **keywords: Any) -> None:
            args = keywords.get("args", arguments[1] if len(arguments) > 1 else None)
            for name, text in settings.items() if args is not None else ():
                setattr(args, name, convert(getattr(args, name, text), text))
            initialize(self, *arguments, **keywords)

        module.Trainer.__init__ = with_settings


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the trainers' module where every other finder does."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where the trainers' module is, None for every other one."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._settings)
        return spec


def main() -> None:
    """Run the script as Python itself would."""
    settings, script = json.loads(sys.argv[1]), sys.argv[2]
    sys.meta_path.insert(0, _Finder(settings))
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
