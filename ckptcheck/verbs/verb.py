"""Makes a verb of a function: its arguments are checked by their declarations, for the command line and for Python alike."""

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, StrPath
from ckptcheck.verbs.parameter import Given, read_parameter

P = ParamSpec("P")
R = TypeVar("R")
RejectUnused = Callable[[Given], None]
ARITHMETIC = (
    r"(divide by zero|overflow|underflow|invalid value) encountered|Mean of empty slice|Degrees of freedom|All-NaN"
)
"""How numpy's warnings about numbers begin."""


class Verb:
    """A function with declared options."""

    def __init__(self, function: Callable[..., Any], reject_unused: RejectUnused | None = None) -> None:
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.parameters = {name: read_parameter(each) for name, each in self.signature.parameters.items()}
        self.settings = {name: each for name, each in self.parameters.items() if each.is_setting}
        self.returns = str(self.signature.return_annotation)
        """What it returns, as it is written."""
        self._reject_unused = reject_unused

    def run(
        self,
        arguments: Mapping[str, Any],
        written: Iterable[str] | None = None,
        config: StrPath | None = None,
        observer: Observer = SILENT,
    ) -> Any:
        """Check the arguments, and call the function.

        Args:
            arguments: Those of the function.
            written: The ones that the user wrote on the command line; None: those that differ from their defaults.
            config: The file with the settings of the project, where the function does not take it; None: the nearest.
            observer: Receives messages where the function takes no observer.

        Raises TypeError, UsageError, and what the function raises.
        """
        values = {name: self._check(name, value) for name, value in arguments.items()}
        if self.settings:
            values = {**self._read_settings(values, config, observer), **values}
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        if written is None:
            written = [name for name, value in arguments.items() if value != self.parameters[name].default]
        given = Given(self.parameters, bound.arguments, written)
        self._reject_pairs(given)
        if self._reject_unused is not None:
            self._reject_unused(given)
        with warnings.catch_warnings():
            # in all threads, unlike numpy.errstate: what numbers overflow to is what the rules judge
            warnings.filterwarnings("ignore", ARITHMETIC, RuntimeWarning)
            return self.function(*bound.args, **bound.kwargs)

    def _check(self, name: str, value: Any) -> Any:
        parameter = self.parameters[name]
        if parameter.declared is None or value is parameter.default:
            return value
        if parameter.is_variadic:
            return tuple(parameter.check(each, self.name) for each in value)
        return parameter.check(value, self.name)

    def _read_settings(
        self, arguments: Mapping[str, Any], config: StrPath | None, observer: Observer
    ) -> dict[str, Any]:
        """Return the settings of the project for this verb, in place of the defaults."""
        from ckptcheck.verbs.settings import read_verb_settings

        words = [arguments.get(name) for name, each in self.parameters.items() if isinstance(each.declared, Argument)]
        flat = [each for word in words for each in (word if isinstance(word, (tuple, list)) else (word,))]
        targets = [each for each in flat if isinstance(each, (str, os.PathLike))]
        # A verb that takes the file itself says itself what it does not read.
        observer = SILENT if "config" in self.parameters else arguments.get("observer", observer)
        config = arguments.get("config", config)
        return read_verb_settings(self.name, self.settings, targets, config, arguments, observer)

    def _reject_pairs(self, given: Given) -> None:
        """Reject options that have no effect beside another one, or without one."""
        for name in self.parameters:
            parameter = self.parameters[name]
            if parameter.declared is None or given[name] == parameter.default:
                continue
            if parameter.declared.without:
                reason = f": {parameter.declared.because}" if parameter.declared.because else ""
                where = f"with {parameter.flag(given[name])}{reason}"
                given.reject(parameter.declared.without, where, parameter.declared.hint or None)
        for name, parameter in self.parameters.items():
            needs = parameter.declared.needs if parameter.declared is not None else ()
            needs = tuple(other for other in needs if other in self.parameters)
            if needs and not any(given[other] != self.parameters[other].default for other in needs):
                where = f"without {' or '.join(self.parameters[other].flag() for other in needs)}"
                given.reject([name], where, (parameter.declared.hint if parameter.declared else "") or None)


def verb(reject_unused: RejectUnused | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a verb of a function.

    reject_unused: raises UsageError for options that have no effect, where that depends on more than one of them being there.
    """

    def make(function: Callable[P, R]) -> Callable[P, R]:
        made = Verb(function, reject_unused)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = made.run(made.signature.bind(*args, **kwargs).arguments)
            return result

        call.__doc__ = _describe_arguments(made)
        call.verb = made  # type: ignore[attr-defined]
        return call

    return make


def find_verb(function: Callable[..., Any]) -> Verb:
    """Return the verb that a function was made to."""
    found: Verb = function.verb  # type: ignore[attr-defined]
    return found


def _describe_arguments(made: Verb) -> str:
    """Return the docstring with a line for every argument."""
    lines = [
        f"    {name}: {each.declared.help}{f' Default: {each.declared.shown}.' if each.declared.shown else ''}"
        for name, each in made.parameters.items()
        if each.declared is not None
    ]
    return "\n".join([inspect.cleandoc(made.function.__doc__ or ""), "", "Args:", *lines]) + "\n"
