"""Puts a watch into RL frameworks: ``adapters.slime(updater, watch)``, one function for each folder that has a ``watch.py``.

Each wraps one method of the framework, and imports nothing of it. `INTERFACE` in a framework's ``watch.py`` says for which date and
commit it is written, and the methods with their arguments. Where a version has others, the watch says so in one sentence when it
is put in, and still sees the engine's side.
"""

from __future__ import annotations

from typing import Any

from ckptcheck.framework_folders import list_frameworks_with, load_framework_file

__all__ = list_frameworks_with("watch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"there is no adapter {name}; choose one of {', '.join(__all__)}")
    return getattr(load_framework_file(name, "watch"), name)


def __dir__() -> list[str]:
    return __all__
