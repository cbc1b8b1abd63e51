"""The parameters of a verb: their types and declarations, how a value is checked, and which of them the user gave."""

import inspect
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.linter.late_import import load_function
from ckptcheck.text.formatting import join_words
from ckptcheck.verbs.options import ANY, Option, Setting


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a verb."""

    name: str
    default: Any
    """Its default; `inspect.Parameter.empty` if it is required."""
    kinds: tuple[Any, ...]
    """The types that it takes, without None and without sequences."""
    item: tuple[Any, ...]
    """The types of its values, if it takes one or several; () if it takes only one."""
    takes_none: bool
    is_variadic: bool
    """Whether it is ``*name``: all values without a name."""
    declared: Option | None
    """Its declaration; None for a parameter of Python's alone."""

    @property
    def is_setting(self) -> bool:
        """Whether a project sets it, or ``--set`` does."""
        return isinstance(self.declared, Setting)

    @property
    def is_written(self) -> bool:
        """Whether it names a file that the verb writes."""
        return self.declared is not None and self.declared.is_output

    @property
    def is_whole(self) -> bool:
        """Whether it takes whole numbers only."""
        return int in (*self.kinds, *self.item)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that its type names; () if it takes more than a fixed list of words."""
        literals = [kind for kind in (*self.kinds, *self.item) if get_origin(kind) is Literal]
        return get_args(literals[0]) if literals else ()

    def list_choices(self) -> tuple[str, ...]:
        """Return the values that it takes; () if it takes more than a fixed list of words. Imports the function that lists them."""
        if self.declared is not None and self.declared.listed:
            return tuple(load_function(self.declared.listed)())
        return self.choices

    def flag(self, value: object = None) -> str:
        """Return its name on the command line: ``--output``, not ``-o``; for False, the name of the switch that turns it off."""
        name = self.name.replace("_", "-")
        if self.is_setting:
            return f"--set {name}"
        on, _, off = (self.declared.names if self.declared is not None else "").partition("/")
        return off if off and value is False else max(on.split() or [f"--{name}"], key=len)

    def check(self, value: object, verb: str) -> Any:
        """Return a value in its one form. Raises TypeError for one of another type, UsageError for one that is not taken."""
        if value is None and self.takes_none:
            return None
        if self.item and (not isinstance(value, (str, os.PathLike, Mapping)) and isinstance(value, Iterable)):
            return tuple(self._check_one(each, self.item, verb, value) for each in value)
        if self.item:
            return (self._check_one(value, self.item, verb, value),)
        return self._check_one(value, self.kinds, verb, value)

    def _check_one(self, value: object, kinds: tuple[Any, ...], verb: str, given: object) -> Any:
        if kinds and not any(_is_a(value, kind) for kind in kinds):
            raise TypeError(f"{verb} takes {self.describe()} as {self.name}, not {given!r}")
        if (choices := self.list_choices()) and value not in choices:
            raise UsageError(f"{self.flag()} is one of {', '.join(choices)}, not {value}")
        if isinstance(value, Real) and not isinstance(value, bool):
            self._require_range(value)
        if self.declared is not None and self.declared.normalize:
            try:
                return load_function(self.declared.normalize)(value)
            except CkptcheckError as error:
                raise UsageError(f"{self.flag()}: {error.message}", error.hint) from None
        return value

    def _require_range(self, value: Real) -> None:
        within = self.declared.within if self.declared is not None else ANY
        least = -inf if within.least is None else within.least
        most = inf if within.most is None else within.most
        if isfinite(value) and least <= float(value) <= most:
            return
        bounds = f" from {least:g} {'on' if most == inf else f'to {most:g}'}" if isfinite(least) else ""
        kind = "whole numbers" if self.is_whole else "finite numbers"
        raise UsageError(f"{self.flag()} takes {kind}{bounds}, not {value!r}")

    def describe(self) -> str:
        """Say what it takes, as in "a path, several of these, or None"."""
        words = [_describe(kind) for kind in self.item or self.kinds]
        words = [" or ".join(dict.fromkeys(words))]
        if self.item:
            words.append("several of these")
        if self.takes_none:
            words.append("None")
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


class Given:
    """The arguments of one call, and which of them the user gave."""

    def __init__(self, parameters: Mapping[str, Parameter], values: Mapping[str, Any], names: Iterable[str]) -> None:
        self._parameters = parameters
        self._values = values
        self.names = list(names)
        """Those that the user gave."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def reject(self, unused: Iterable[str], where: str, hint: str | None = None) -> None:
        """Raise UsageError that names the unused options that the user gave. where: why they have no effect."""
        flags = [self._parameters[name].flag(self._values[name]) for name in unused if name in self.names]
        if flags:
            raise UsageError(f"{join_words(flags)} {'has' if len(flags) == 1 else 'have'} no effect {where}", hint)


def read_parameter(parameter: inspect.Parameter) -> Parameter:
    """Read the type and the declaration of a parameter from its annotation."""
    annotation, declared = parameter.annotation, None
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        declared = next((each for each in metadata if isinstance(each, Option)), None)
    kinds = list(get_args(annotation)) if get_origin(annotation) in (Union, types.UnionType) else [annotation]
    sequences = [kind for kind in kinds if _is_sequence(get_origin(kind))]
    item: tuple[Any, ...] = ()
    if sequences:
        (inner,) = get_args(sequences[0])
        item = get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)
    return Parameter(
        parameter.name,
        parameter.default,
        tuple(kind for kind in kinds if kind not in (types.NoneType, *sequences)),
        item,
        types.NoneType in kinds,
        parameter.kind is parameter.VAR_POSITIONAL,
        declared,
    )


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple


def _is_a(value: object, kind: Any) -> bool:
    """Whether a value is of a type as annotations name it. An int is a number, True is none."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and len(value) == len(get_args(kind))
    if origin in (int, float):
        return isinstance(value, Integral if origin is int else Real) and not isinstance(value, bool)
    return not isinstance(origin, type) or isinstance(value, origin)


def _describe(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if origin is tuple:
        return f"{len(get_args(kind))} values"
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", os.PathLike: "a path"}
    return words.get(origin, getattr(origin, "__name__", str(origin)))


def to_path(path: str | os.PathLike[str] | None) -> Path | None:
    """Return a path, None for None."""
    return None if path is None else Path(path)


def several(values: Any) -> tuple[Any, ...]:
    """Return the values as a tuple; a single string, path or number gives a tuple of one, and no letters."""
    return (values,) if isinstance(values, (str, os.PathLike, Real)) else tuple(values)


def choose_subset(words: Sequence[str], known: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the words without repetitions. Raises CkptcheckError for none, and for one that is not known."""
    chosen = tuple(dict.fromkeys(words))
    if not chosen or set(chosen) - set(known):
        raise CkptcheckError(f"{option} is some of {', '.join(known)}, not {', '.join(words) or 'nothing'}")
    return chosen


def reject_checks(given: Given) -> None:
    """Reject GPUs of a trainer that computes on the CPU. Raises UsageError also if no check is left."""
    if not (given["check_weights"] or given["check_logprobs"]):
        raise UsageError("with both checks turned off there is nothing to check")
    if given["device"] == "cpu":
        given.reject(["trainer_gpus"], "with --set device=cpu: the trainer is kept off GPUs")


def reject_phases(given: Given, unused: Sequence[str], where: str) -> None:
    """Raise UsageError for timeouts of these phases, which are written ``PHASE=SECONDS``. where: why they have no effect."""
    phases = {str(text).rpartition("=")[0] for text in several(given["timeout"])}
    if flags := [f"--set timeout={phase}=" for phase in unused if phase in phases]:
        raise UsageError(f"{join_words(flags)} {'has' if len(flags) == 1 else 'have'} no effect {where}")
