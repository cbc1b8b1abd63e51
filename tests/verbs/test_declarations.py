"""Every option is declared once, in the signature of its verb: help, range, names, default."""

from __future__ import annotations

import ast
import inspect
import math
import re
import subprocess
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.errors import UsageError
from ckptcheck.linter.late_import import load_function
from ckptcheck.verbs import FURTHER, VERBS
from ckptcheck.verbs.parameter import Parameter
from ckptcheck.verbs.verb import Verb
from tests.paths import ROOT
from tests.test_public_interface import _commands

MOST_OPTIONS = 25
"""Options of one command, with those that every command has or every one with settings."""
MOST_COMMON = 8
"""Options that the help lists first, below no heading."""
DECLARE = ("Option", "Argument", "Setting")
LOADED = {words: load_verb(words) for words in VERBS}
WITHOUT_FUNCTION = {"rules", "rule", "doctor", "engine install", "engine list", "engine remove"}
"""Commands that describe ckptcheck and what is installed."""


def _declarations() -> Iterator[tuple[str, Parameter]]:
    for words, verb in LOADED.items():
        yield from ((words, each) for each in verb.parameters.values() if each.declared is not None)


def _calls() -> Iterator[ast.Call]:
    """Yield all declarations, and what is declared beside them, as they are typed."""
    for path in (*(ROOT / "ckptcheck/verbs").glob("*.py"), ROOT / "ckptcheck/cli/verb_command.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (*DECLARE, "Range"):
                yield node


def test_no_help_is_declared_twice() -> None:
    texts = Counter(
        ast.unparse(node.args[0])
        for node in _calls()
        if getattr(node.func, "id", "") in DECLARE and node.args and not isinstance(node.args[0], ast.Name)
    )
    assert len(texts) > 100
    assert not [text for text, times in texts.items() if times > 1]


def test_no_range_and_no_list_of_values_is_typed_twice() -> None:
    """Declarations that take the same numbers or words name them."""
    typed: Counter[str] = Counter()
    for node in _calls():
        if getattr(node.func, "id", "") == "Range":
            typed[ast.unparse(node)] += 1
        for keyword in node.keywords if getattr(node.func, "id", "") in DECLARE else ():
            if keyword.arg in ("listed", "normalize") and not isinstance(keyword.value, ast.Name):
                typed[f"{keyword.arg}={ast.unparse(keyword.value)}"] += 1
    for path in (*(ROOT / "ckptcheck/verbs").glob("*.py"), ROOT / "ckptcheck/cli/verb_command.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
                typed[" or ".join(sorted(ast.unparse(node.slice).split(", ")))] += 1
    assert len(typed) > 20
    assert not [text for text, times in typed.items() if times > 1]


def test_options_of_one_name_take_the_same_numbers() -> None:
    """Unless they mean something else by their name, or need more: these stand here, each with its reason."""
    unlike = {
        "length": "a probe continues its prompts from several places",
        "response": "a probe compares parts of a response",
        "temperature": "parity score divides by it",
        "tokens": "parity localize takes the ids of a prompt",
    }
    ranges: dict[str, set[object]] = {}
    for _, parameter in _declarations():
        if {int, float} & {*parameter.kinds, *parameter.item} and str not in parameter.kinds:
            ranges.setdefault(parameter.name, set()).add(typing.cast(Any, parameter.declared).within)
    assert {name for name, found in ranges.items() if len(found) > 1} == {*unlike}


@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("scan", "scan:preview_repairs"),
        ("preflight", "preflight:open_job_report"),
    ],
)
def test_a_function_beside_a_verb_has_the_defaults_of_the_verb(words: str, function: str) -> None:
    """It takes some of the verb's arguments, and its signature is the only other place where their defaults stand."""
    parameters = inspect.signature(load_function(f"ckptcheck.verbs.{function}")).parameters.values()
    shared = [each for each in parameters if each.name in LOADED[words].parameters and each.default is not each.empty]
    assert shared
    for each in shared:
        assert each.default == LOADED[words].parameters[each.name].default, each.name


def test_only_signatures_declare() -> None:
    for path in (ROOT / "ckptcheck/cli").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "verb_command.py":
            names = re.findall(
                r"(?:click\.Option|PanelOption|HelpedArgument)\((?!\[(?:\"--version\"|name)|click)", text
            )
            assert not names, path
    for verb in LOADED.values():
        assert "Args:" not in (verb.function.__doc__ or ""), "the arguments are described by their declarations"


def test_what_is_required_is_asked_for() -> None:
    asked = []
    for words, command in _commands(build_app()):
        required = [each for each in command.params if each.required]
        arguments = ["1" for each in required if each.param_type_name == "argument"]
        options = [each for each in required if each.param_type_name == "option"]
        for left_out in options:
            others = [word for each in options if each is not left_out for word in (each.opts[0], "1")]
            with pytest.raises(click.MissingParameter) as caught:
                command.make_context(words, [*arguments, *others])
            assert caught.value.param is left_out, words
            asked.append((words, left_out.opts[0]))
        if arguments:
            with pytest.raises(click.MissingParameter):
                command.make_context(words, [word for each in options for word in (each.opts[0], "1")])
    assert ("manifest", "-o") in asked
    assert ("parity convert", "-o") in asked


def test_no_command_has_too_many_options() -> None:
    for words, command in _commands(build_app()):
        options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
        assert len(options) <= MOST_OPTIONS, words
        common = [each.name for each in options if not getattr(each, "panel", "")]
        assert len(common) <= MOST_COMMON, (words, common)


def test_names_that_declarations_exclude_or_need_are_there() -> None:
    for words, parameter in _declarations():
        assert parameter.declared is not None
        for name in parameter.declared.without:
            assert name in LOADED[words].parameters or name == "length", (words, name)
        needs = parameter.declared.needs
        assert not needs or {*needs} & {*LOADED[words].parameters}, (words, parameter.name)


def test_every_verb_is_a_function_of_the_package() -> None:
    exported = {name for name in ckptcheck.__all__ if name.islower() and name not in ("__version__", "rule")}
    verbs = {verb.name for words, verb in LOADED.items() if words not in WITHOUT_FUNCTION}
    assert verbs | {*FURTHER} == exported
    for words, verb in LOADED.items():
        if words not in WITHOUT_FUNCTION:
            assert inspect.unwrap(getattr(ckptcheck, verb.name)) is verb.function


def test_help_describes_every_argument() -> None:
    for _, parameter in _declarations():
        assert parameter.declared is not None
    for verb in LOADED.values():
        text = inspect.getdoc(typing.cast(Any, _load(verb))) or ""
        for name, each in verb.parameters.items():
            assert each.declared is None or f"{name}: {each.declared.help}" in text


def _load(verb: Verb) -> Callable[..., object]:
    return typing.cast(Callable[..., object], getattr(inspect.getmodule(verb.function), verb.name))


# --- what a declaration refuses ---


@pytest.fixture
def nothing_starts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, and fail where a process is started."""

    def start_process(*words: object, **_: object) -> None:
        raise AssertionError(f"a process was started: {words}")

    monkeypatch.setattr(subprocess.Popen, "__init__", start_process)
    monkeypatch.chdir(tmp_path)


def test_a_number_out_of_its_range_is_refused(nothing_starts: None) -> None:
    checked = 0
    for words, parameter in _declarations():
        kinds = {int, float} & {*parameter.kinds, *parameter.item}
        if not kinds or str in parameter.kinds:
            continue
        declared, run = parameter.declared, LOADED[words]
        assert declared is not None
        outside: list[Any] = [] if kinds == {int} else [math.nan, math.inf, -math.inf]
        for bound, step in ((declared.within.least, -1), (declared.within.most, 1)):
            if bound is not None:
                outside.append(int(bound) + step if kinds == {int} else math.nextafter(bound, step * math.inf))
                parameter.check(int(bound) if kinds == {int} else bound, run.name)
        for value in outside:
            with pytest.raises(UsageError, match=f"^{re.escape(parameter.flag())} takes "):
                parameter.check(value, run.name)
        for value in ("1", True, 1.5 if kinds == {int} else "x"):
            with pytest.raises(TypeError, match=f"^{run.name} takes .* as {parameter.name}, not "):
                parameter.check(value, run.name)
        checked += 1
    assert checked > 50


def test_every_list_takes_a_single_value_and_splits_no_word() -> None:
    checked = 0
    for words, parameter in _declarations():
        if not parameter.item:
            continue
        value: Any = "unheard-of" if str in parameter.item else 7
        assert parameter.check(value, words) == (value,)
        assert parameter.check([value, value], words) == (value, value)
        checked += 1
    assert checked > 30


def test_every_default_is_one_that_the_declaration_takes() -> None:
    for words, parameter in _declarations():
        if parameter.default is not inspect.Parameter.empty and not parameter.declared.normalize:  # type: ignore[union-attr]
            assert parameter.check(parameter.default, words) == parameter.default or parameter.default == ()
