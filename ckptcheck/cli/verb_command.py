"""Makes a command out of a verb: with the options that the verb declares, and the options that every command has."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import click
from msgspec import structs

from ckptcheck.cli.report_command import HelpedArgument, PanelOption, ReportCommand, find_format, list_outputs
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.linter.late_import import load_function
from ckptcheck.linter.report import FailOn, Report, Reports
from ckptcheck.reporters import ReportFormat
from ckptcheck.verbs import VERBS
from ckptcheck.verbs.options import Argument, Option, Setting, TextOrJson
from ckptcheck.verbs.parameter import Given, Parameter, read_parameter
from ckptcheck.verbs.settings import parse_written
from ckptcheck.verbs.verb import Verb, find_verb

MACHINES, PRINTED = "Several machines", "What is printed"
FORMATS_HELP = (
    "text, json, sarif, junit, github, markdown, html (a page with pictures), or json-with-pictures (for report)."
)
Declaration = tuple[Any, Option, object]
"""The type of an option, its declaration, and its default."""
OF_REPORTS: Mapping[str, Declaration] = {
    "format": (ReportFormat, Option(FORMATS_HELP, metavar="FORMAT", shown="by the ending of -o, else text"), "text"),
    "output": (
        list[str],
        Option(
            "Write the report to a file: .json, .sarif, .xml (JUnit), .md or .html. Repeatable, for several formats of one run.",
            "-o --output",
            metavar="FILE",
        ),
        None,
    ),
    "fail_on": (
        FailOn | None, Option("Exit with 1 on findings of this severity or a worse one.", shown="error"), None,
    ),
    "verbose": (
        bool, Option("Also show what passed, by family, and long tables whole.", "-v --verbose", panel=PRINTED), False,
    ),
    "quiet": (bool, Option("Print the verdict only.", "-q --quiet", without=("verbose",), panel=PRINTED), False),
}  # fmt: skip
"""Options of every command that writes a report."""
OF_IDENTITIES: Mapping[str, Declaration] = {
    "format": (
        TextOrJson,
        Option("text: a line for each target; json: every tensor with its digest."),
        "text",
    ),
}
"""Options of a command whose verb returns an identity."""
OF_RUNNERS: Mapping[str, Declaration] = {
    "part": (
        str | None,
        Option(
            "Read only part I of N, from 0 to N-1, and write it to the folder of -o, also an s3:// address; ckptcheck join makes "
            "the report.",
            metavar="I/N", panel=MACHINES,
        ),
        None,
    ),
    "on": (
        str | None,
        Option(
            "Read in a Ray cluster: ray for the one of this machine, or ray://HOST:10001.",
            metavar="ray", shown="this machine", panel=MACHINES,
        ),
        None,
    ),
}  # fmt: skip
"""Options of a command whose verb takes a runner."""
OF_SETTINGS: Mapping[str, Declaration] = {
    "set": (
        list[str],
        Option(
            "A setting of this command, repeatable; [verbs] in ckptcheck.toml sets it for good.",
            metavar="NAME=VALUE",
            panel="Settings",
        ),
        None,
    ),
    "config": (
        str | None,
        Option(
            "File with settings. One that is named may run code: rules, engine-python, trainer-python.",
            metavar="FILE", shown="the nearest ckptcheck.toml or pyproject.toml, not with the target", panel="Settings",
        ),
        None,
    ),
}  # fmt: skip
"""Options of a command whose verb has settings."""
PREVIEW: Declaration = (
    bool, Option("Print what --fix would change, and nothing else.", "--diff", panel="Repairs"), False,
)  # fmt: skip
"""A switch of scan, which has `preview_repairs` called in its place."""
FOLLOW: Declaration = (
    bool, Option("Follow the record of a job that runs: report again at each sync, until Ctrl-C.", "--watch"), False,
)  # fmt: skip
"""A switch of `refit history`, which has `follow_history` called in its place."""
METAVARS: Mapping[str, str] = {"integer range": "N", "float range": "X", "text": "NAME"}
"""click's name of what an option takes → its value in the help, where the declaration names none."""
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
"""A whole number of few digits, because Python refuses to convert more than some thousand."""


def load_verb(words: str) -> Verb:
    """Return the verb of a command. Nothing else is imported."""
    module, _, function = VERBS[words].partition(":")
    return find_verb(load_function(f"ckptcheck.verbs.{module}:{function}"))


def make_command(words: str, name: str) -> ReportCommand:
    """Return the command of a verb. name: its last word, or all words."""
    verb = load_verb(words)
    own = _declare_own(words, verb)
    declared = {name: each for name, each in verb.parameters.items() if each.declared is not None}
    declared = {name: each for name, each in declared.items() if not isinstance(each.declared, Setting)}
    shown = {**declared, **own}
    arguments = [name for name, each in declared.items() if isinstance(each.declared, Argument)]
    ordered = [*arguments, *(name for name in shown if name not in arguments)]

    def run(**values: Any) -> None:
        ctx = click.get_current_context()
        sources = {name: ctx.get_parameter_source(name) for name in shown}
        names = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        values = {name: list(value) if is_repeated(shown[name]) else value for name, value in values.items()}
        _run(words, verb, Given(shown, values, names), values)

    return ReportCommand(name, verb, [_show_parameter(shown[each]) for each in ordered], run, describe_verb(verb))


def describe_verb(verb: Verb) -> str:
    """Return the help of a verb: its docstring up to the part for programs, which begins with Returns, Raises or In Python."""
    paragraphs = inspect.cleandoc(verb.function.__doc__ or "").split("\n\n")
    ends = [number for number, text in enumerate(paragraphs) if text.startswith(("Return", "Raises", "In Python"))]
    return "\n\n".join(paragraphs[: ends[0] if ends and ends[0] else len(paragraphs)])


def writes_report(verb: Verb) -> bool:
    """Whether a verb returns a report."""
    return re.search(r"\bReports?\b", verb.returns) is not None


def split_list(option: str, values: Sequence[str]) -> list[str]:
    """Split the values of a repeatable option at their commas. Raises UsageError for a name that is empty.

    >>> split_list("--select", ["IDX,CFG003", " MOE"])
    ['IDX', 'CFG003', 'MOE']
    """
    names = []
    for value in values:
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise UsageError(f"{option} {value!r} has an empty name", hint="write names with one comma between two")
        names += parts
    return names


def _declare_own(words: str, verb: Verb) -> dict[str, Parameter]:
    """Return the options that the command has beside its verb's options."""
    own = {**(OF_REPORTS if writes_report(verb) else {}), **(OF_RUNNERS if "runner" in verb.parameters else {})}
    if "Identity" in verb.returns:
        own |= OF_IDENTITIES
    if verb.settings:
        own |= OF_SETTINGS
    if words == "scan":
        own |= {"diff": PREVIEW}
    if words == "refit history":
        own |= {"watch": FOLLOW}
    return {
        name: read_parameter(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        )
        for name, (kind, option, default) in own.items()
        if name not in verb.parameters or verb.parameters[name].declared is None
    }


def is_repeated(parameter: Parameter) -> bool:
    """Whether the command line takes several values of a parameter."""
    declared = parameter.declared
    return bool(parameter.item) or parameter.is_variadic or (declared is not None and declared.is_repeated)


def _show_parameter(parameter: Parameter) -> click.Parameter:
    """Return a parameter as the command line takes it."""
    declared = parameter.declared
    assert declared is not None
    kind, default = _choose_type(parameter), parameter.default
    is_argument, is_switch = isinstance(declared, Argument), kind is click.BOOL
    metavar = declared.metavar or ("" if is_argument else METAVARS.get(kind.name, ""))
    if declared.has_commas and not declared.metavar:
        metavar = "N,…" if parameter.is_whole else "NAME,…"
    is_required = declared.is_required or parameter.is_variadic or default is inspect.Parameter.empty
    several = is_repeated(parameter)
    keywords: dict[str, Any] = {"type": kind, "required": is_required, "metavar": metavar or None}
    if is_argument:
        return HelpedArgument([parameter.name], declared.help, nargs=-1 if several else 1, **keywords)
    if is_switch:
        keywords |= {"default": bool(default), "is_flag": True}
    elif not is_required and default is not None:  # click takes a None that is given for a value
        keywords["default"] = default
    shows_default = declared.shown or not (is_required or default is None or default in ((), ""))
    names = declared.names.split(" ") if declared.names else [f"--{parameter.name.replace('_', '-')}"]
    return PanelOption(
        [*names, parameter.name],
        declared.panel,
        help=declared.help,
        multiple=several,
        show_default=shows_default,
        **keywords,
    )


def _choose_type(parameter: Parameter) -> Any:
    """Return the type to which the command line converts a value."""
    kinds, declared = parameter.item or parameter.kinds, parameter.declared
    assert declared is not None
    for kind in kinds if str not in kinds and not declared.has_commas else ():
        if parameter.choices:
            return click.Choice(parameter.choices)
        if kind is bool:
            return click.BOOL
        if kind is int:
            return click.IntRange(declared.within.least, declared.within.most)  # type: ignore[arg-type]
        if kind is float:
            return click.FloatRange(declared.within.least, declared.within.most)
        if getattr(kind, "__origin__", None) is tuple:
            return click.Tuple([str] * len(kind.__args__))
    return click.STRING


def _run(words: str, verb: Verb, written: Given, values: Mapping[str, Any]) -> None:
    """Run the verb with the user's arguments, and write its result."""
    from ckptcheck.cli import numpy_threads
    from ckptcheck.cli import output as out

    if verb.name in numpy_threads.VERBS and not values.get("headers_only"):
        numpy_threads.import_numpy()
    arguments = {
        name: _convert(verb.parameters[name], values[name]) for name in written.names if name in verb.parameters
    }
    if "observer" in verb.parameters:
        arguments["observer"] = out.TERMINAL
    if "pictures" in verb.parameters:
        endings = [find_format(Path(output)) for output in values["output"] or ()]
        arguments["pictures"] = any(map(out.shows_pictures, filter(None, (values["format"], *endings))))
    passed_on = [name for name in OF_REPORTS if name in verb.parameters and values.get(name) is not None]
    arguments |= {name: values[name] for name in passed_on}
    if verb.name == "join":
        arguments["output"] = next(iter(values["output"] or ()), None)  # of a manifest
    if values.get("set"):
        arguments |= parse_written(values["set"], verb.settings, verb.name)
    if values.get("part") is not None:
        _write_part(verb, written, arguments, values)
    if values.get("diff"):
        _preview_repairs(written, arguments)
    if values.get("watch"):
        _follow_history(written, values)
    if values.get("on") is not None:
        from ckptcheck.runners.ray_cluster import parse_runner

        arguments["runner"] = parse_runner(values["on"])
    outputs = list_outputs(values) if writes_report(verb) and "output" not in verb.parameters else ()
    names = [name for name in arguments if name in written.names or name in verb.settings]
    record_error, was_interrupted = None, False
    try:
        run = partial(verb.run, config=values.get("config"), observer=out.TERMINAL)
        with numpy_threads.one_thread() if verb.name in numpy_threads.VERBS_THAT_MAY else nullcontext():
            result = _run_each(verb, run, arguments, names)
    except CkptcheckError as error:
        if (result := getattr(error, "report", None)) is None:
            raise
        record_error = error
    except KeyboardInterrupt:
        if not out.TERMINAL.known:
            raise
        result, was_interrupted = Reports(_with_rules(out.TERMINAL.known.values())), True
    if isinstance(result, (Report, Reports)):
        out.finish(
            result,
            outputs or list_outputs(values),
            values["fail_on"],
            verbose=values["verbose"],
            quiet=values["quiet"],
            record_error=record_error,
            was_interrupted=was_interrupted,
        )
    write_result(result, values)


def _with_rules(reports: Iterable[Report]) -> tuple[Report, ...]:
    """Return reports as a verb would return them at its end."""
    from ckptcheck.linter.rule_loader import load_rules

    rules = tuple(load_rules())
    return tuple(structs.replace(report, rules=rules) for report in reports)


def _run_each(verb: Verb, run: Callable[..., Any], arguments: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Run the verb, once for each value if the command line takes several of an argument and the verb one."""
    for name, parameter in verb.parameters.items():
        if parameter.declared is not None and parameter.declared.is_repeated:
            return [run({**arguments, name: each}, names) for each in arguments[name]]
    return run(arguments, names)


def _convert(parameter: Parameter, value: Any) -> Any:
    """Return the user's value in the verb's form: lists of words, of numbers."""
    declared = parameter.declared
    if declared is None or not declared.has_commas:
        return value
    words = split_list(parameter.flag(), value)
    if not parameter.is_whole:
        return words
    for word in words:
        if not WHOLE_NUMBER.fullmatch(word):
            raise UsageError(f"{parameter.flag()} takes whole numbers, not {word}")
    return [int(word) for word in words]


def _write_part(verb: Verb, written: Given, arguments: dict[str, Any], values: Mapping[str, Any]) -> NoReturn:
    """Compute a part, write it to a folder, and end the command. Raises CkptcheckError."""
    from ckptcheck.verbs.join import write_part

    own = [name for name in (*OF_REPORTS, "on", "diff") if name != "output"]
    own += ["config"] if "config" not in verb.parameters else []
    written.reject(own, "with --part: ckptcheck join makes the report")
    folders = values["output"] if isinstance(values["output"], list) else [values["output"]]  # a manifest has one
    if len(folders) != 1 or folders[0] is None:
        raise UsageError("--part needs the folder of all parts", hint="give it with -o")
    arguments.pop("output", None)
    targets: list[Any] = []
    for name in [name for name, each in verb.parameters.items() if isinstance(each.declared, Argument)]:
        value = arguments.pop(name, None)
        targets += value if isinstance(value, list) else [] if value is None else [value]
    write_part(cast(Any, verb.name), *targets, part=values["part"], folder=folders[0], **arguments)
    raise click.exceptions.Exit(0)


def _preview_repairs(written: Given, arguments: Mapping[str, Any]) -> NoReturn:
    """Write what --fix would change, and end the command with 1 if that is anything. Raises UsageError for other options."""
    import sys

    from ckptcheck.reporters.printable import printable_lines
    from ckptcheck.reporters.runner_commands import break_commands
    from ckptcheck.verbs.scan import preview_repairs

    taken = inspect.signature(preview_repairs).parameters
    unused = [name for name in written.names if name not in taken and name != "diff"]
    written.reject(unused, "with --diff, which only shows what --fix would change")
    diffs = preview_repairs(**{name: value for name, value in arguments.items() if name in taken})
    shown = printable_lines(diffs)
    sys.stdout.write(break_commands(shown) if not sys.stdout.isatty() else shown)
    raise click.exceptions.Exit(1 if diffs else 0)


def _follow_history(written: Given, values: Mapping[str, Any]) -> NoReturn:
    """Show the record of a job until Ctrl-C, and end the command with the code of the last report.

    Raises UsageError for other options, CkptcheckError if the record was never written.
    """
    from ckptcheck.cli.history_page import follow

    written.reject([name for name in written.names if name not in {"file", "watch", *OF_REPORTS}], "with --watch")
    report = follow(Path(values["file"]), list_outputs(values), verbose=values["verbose"])
    if report is None:
        raise CkptcheckError(f"{values['file']} was never written", hint="the job writes it at its first sync")
    raise click.exceptions.Exit(report.exit_code(values["fail_on"]))


def write_result(result: Any, values: Mapping[str, Any]) -> None:
    """Write the result of a verb. values: the values on the command line."""
    if isinstance(result, str):
        sys.stdout.write(result)
    elif hasattr(result, "section"):
        from ckptcheck.reporters import tables
        from ckptcheck.reporters.line_printer import LinePrinter

        tables.write(LinePrinter(sys.stdout), result.section())
    elif "fail_on" in values and not values["output"] and hasattr(result, "tensors"):
        raise UsageError("the parts are of a manifest, which needs a file", hint="name it with -o")
    elif isinstance(result, list) and result and hasattr(result[0], "identity"):
        _write_identities(result, values["format"])


def _write_identities(found: list[Any], format: str) -> None:
    from ckptcheck.reporters.json import escape_deceptive
    from ckptcheck.reporters.printable import printable
    from ckptcheck.reporters.runner_commands import break_commands
    from ckptcheck.text.formatting import count, format_bytes

    if format == "json":
        forms = [each.to_dict() for each in found]
        sys.stdout.write(escape_deceptive(json.dumps(forms[0] if len(forms) == 1 else forms, indent=2)) + "\n")
        return
    for each in found:
        tensors = count(len(each.tensors), "tensor")
        line = (
            f"{each.identity}  {printable(each.target)}  ({tensors}, {format_bytes(each.nbytes)}, {each.names} names)"
        )
        sys.stdout.write(break_commands(line) + "\n")
