"""What an adapter needs of its framework: the source that it was written against, and the methods with their arguments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptcheck.text.formatting import join_words
from ckptcheck.watch.watch_state import SyncWarning


@dataclass(frozen=True)
class Interface:
    """The methods of a framework's object that an adapter wraps or calls."""

    framework: str
    date: str
    """The date of the source that the adapter was written against, as ``2026-08-21``; "" for a release."""
    source: str
    """Its commit or release."""
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a method → the arguments that it has there, without the object itself."""

    def find_difference(self, owner: Any) -> str:
        """Return how an object differs from this interface, "" where it does not. Further arguments are no difference."""
        for name, arguments in self.methods.items():
            method = getattr(owner, name, None)
            if not callable(method):
                return f"{type(owner).__name__} has no {name} here"
            if missing := _find_missing(method, arguments):
                return f"{name} takes no {join_words(missing)} here"
        return ""

    def check_function(self, function: Any) -> bool:
        """Return whether a function, found by its name, takes the arguments of this interface; where not, warn in one sentence."""
        name = getattr(function, "__name__", type(function).__name__)
        missing = _find_missing(function, self.methods.get(name, ()))
        return self._warn_of(f"{name} takes no {join_words(missing)} here" if missing else "")

    def has_methods(self, owner: Any) -> bool:
        """Return whether an object has the methods, whatever their arguments: without them there is nothing to wrap."""
        return all(callable(getattr(owner, name, None)) for name in self.methods)

    def check(self, owner: Any) -> bool:
        """Return whether an object has this interface; where it has not, warn in one sentence."""
        return self._warn_of(self.find_difference(owner))

    def _warn_of(self, difference: str) -> bool:
        if difference:
            warnings.warn(
                f"ckptcheck.watch is written for {self.framework} {self._describe_source()}: {difference}; "
                "it does not see what is sent",
                SyncWarning,
                stacklevel=4,
            )
        return not difference

    def _describe_source(self) -> str:
        return f"of {self.date} ({self.source})" if self.date else self.source


def _find_missing(function: Any, arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments that a function does not take; none for a function without a signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, or an object of Ray
        return []
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return [] if takes_all else [argument for argument in arguments if argument not in parameters]
