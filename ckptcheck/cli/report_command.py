"""A command that reports: it writes the report to the file of -o, even if it cannot check anything."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ckptcheck.cli.examples import write_examples
from ckptcheck.errors import CkptcheckError, OutputError, UsageError, describe_shortage
from ckptcheck.linter.report import Report
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.verbs.parameter import Parameter
from ckptcheck.verbs.verb import Verb

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
OTHER_ENDINGS = {".htm": "html", ".xml": "junit", ".md": "markdown"}
"""Endings of the file of -o that are not the name of a format → the format."""
DEFAULT = re.compile(r"\[default: \((.*)\)(;[^()]*)?\]$")
"""A default that is described in words, which click sets in brackets."""


class HelpedArgument(click.Argument):
    """An argument that the help explains, as it explains options."""

    def __init__(self, names: Sequence[str], help: str, **keywords: Any) -> None:
        """Name the argument. keywords: click's."""
        super().__init__(names, **keywords)
        self.explanation = help

    def make_metavar(self, ctx: click.Context) -> str:
        """Return its name in the help and in errors."""
        return self.metavar or self.name or ""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return its name in the usage: in brackets if it may be left out."""
        name = self.make_metavar(ctx)
        return [name if self.required or name.startswith("[") else f"[{name}]"]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return its row of the help."""
        return self.make_metavar(ctx), self.explanation + ("  [required]" if self.required else "")


class PanelOption(click.Option):
    """An option that stands below a heading of the help."""

    def __init__(self, names: Sequence[str], panel: str, **keywords: Any) -> None:
        """Name the option. panel: the heading; "" for those that most users want. keywords: click's."""
        super().__init__(names, **keywords)
        self.panel = panel


class ReportCommand(click.Command):
    """Runs a verb. If it cannot check, writes a report that says so, and passes the error on to the terminal.

    So a pipeline that uploads the report always finds one; its verdict is then ``incomplete``.
    """

    def __init__(
        self, name: str, verb: Verb, params: list[click.Parameter], run: Callable[..., None], help: str
    ) -> None:
        """Name the command of a verb. run: takes the values of the parameters."""
        super().__init__(name, params=params, callback=run, help=help, context_settings=CONTEXT_SETTINGS)
        self.verb = verb

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options that most users want, the others below their headings, and the settings."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            each = find_declared(self).get(parameter.name or "")
            if row is not None and each is not None and each.declared is not None and each.declared.listed:
                text = each.declared.help
                row = row[0], row[1].replace(text, f"{text}: {', '.join(sorted(each.list_choices()))}.", 1)
            if row is not None:
                row = row[0], DEFAULT.sub(r"[default: \1\2]", row[1])
                is_argument = parameter.param_type_name == "argument"
                title = "Arguments" if is_argument else getattr(parameter, "panel", "") or "Options"
                sections.setdefault(title, []).append(row)
        sections["Options"] = sections.pop("Options")
        settings = [each for each in find_declared(self).values() if each.is_setting]
        sections |= {title: sections.pop(title) for title in ("Several machines", "Settings") if title in sections}
        sections.setdefault("Settings", []).extend(map(_describe_setting, settings))
        for title, rows in sorted(sections.items(), key=lambda section: section[0] not in ("Arguments", "Options")):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the command."""
        write_examples(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command. Raises UsageError for an option without a value."""
        args = self.write_settings(args)
        rest: list[str] = super().parse_args(ctx, list(args))
        if not ctx.resilient_parsing:
            _refuse_empty_values(self, ctx, args)
        return rest

    def write_settings(self, args: list[str]) -> list[str]:
        """Write ``--NAME VALUE`` and ``--NAME=VALUE`` of a setting as ``--set NAME=VALUE``."""
        names = {each.name.replace("_", "-") for each in find_declared(self).values() if each.is_setting}
        written: list[str] = []
        words = iter(args)
        for word in words:
            name, equals, value = word.removeprefix("--").partition("=")
            if word == "--":
                return [*written, word, *words]
            if not word.startswith("--") or name not in names:
                written.append(word)
            elif equals or (value := next(words, "")):
                written += ["--set", f"{name}={value}"]
            else:
                written.append("--set")
        return written

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises what the command raises, and UsageError if -o names one of its inputs."""
        if not {"format", "output"} <= ctx.params.keys() or ctx.params.get("part") is not None:  # a part is no report
            return super().invoke(ctx)
        outputs = [Path(written) for written in ctx.params["output"] or () if not is_remote_address(written)]
        if ctx.get_parameter_source("format").name != "COMMANDLINE":
            ctx.params["format"] = (outputs and find_format(outputs[0])) or ctx.params["format"]
        elif len(outputs) > 1:
            raise UsageError(
                "--format names one format, and -o several files",
                hint="leave --format out: the endings of the files name the formats",
            )
        try:
            _refuse_outputs(self, outputs, ctx)
            return super().invoke(ctx)
        except UsageError:
            raise
        except OutputError as error:
            if outputs:
                _write_failure(ctx, describe_error(error))
            raise
        except Exception as error:
            if not isinstance(error, (click.exceptions.Exit, click.Abort)) and not hasattr(error, "format_message"):
                _write_failure(ctx, describe_error(error))
            raise


def find_format(output: Path) -> str | None:
    """Return the format that the ending of a file names, None for none."""
    from ckptcheck.reporters import FORMATS

    ending = output.suffix.lower()
    return OTHER_ENDINGS.get(ending) or (ending[1:] if ending[1:] in FORMATS else None)


def list_outputs(values: Mapping[str, Any]) -> list[tuple[str, Path | None]]:
    """Return (format, file) of each form of the report; None: stdout. Raises UsageError for an address in a store."""
    outputs = values["output"] or ()
    if any(map(is_remote_address, outputs)):
        raise UsageError(
            "a report can be written to a file of this machine only",
            hint="name a local file with -o; only parts and manifests can go to a store",
        )
    if len(outputs) < 2:
        return [(values["format"], Path(outputs[0]) if outputs else None)]
    return [(find_format(Path(output)) or "text", Path(output)) for output in outputs]


def _refuse_empty_values(command: Any, ctx: Any, words: Sequence[str]) -> None:
    """Raise UsageError for the first option or argument whose value is "", as an unset variable of a shell leaves it.

    An option that chooses nothing would pass as if it were not there, and an empty path is the working directory.
    """
    given, _, _ = command.make_parser(ctx).parse_args(args=list(words))
    for parameter in command.params:
        value = given.get(parameter.name)
        if "" not in (value if isinstance(value, (list, tuple)) else [value]):
            continue
        if parameter.param_type_name == "option":
            name = max(parameter.opts, key=len)  # --output, not -o
            raise UsageError(f"{name} has no value", hint=f"leave {name} out, or give it a value")
        raise UsageError(
            f"{parameter.make_metavar(ctx).strip('[]. …')} is an empty name",
            hint="is a variable of your shell not set?",
        )


def _describe_setting(setting: Parameter) -> tuple[str, str]:
    """Return the row of the help for a setting."""
    assert setting.declared is not None
    shown = setting.declared.shown or ("" if setting.default in (None, "", (), False) else f"{setting.default}")
    return f"  {setting.name.replace('_', '-')}", setting.declared.help + (f"  [default: {shown}]" if shown else "")


def find_declared(command: Any) -> Mapping[str, Parameter]:
    """Return the parameters of the verb that a command is made of."""
    verb: Verb = command.verb
    return verb.parameters


def describe_error(error: Exception) -> str:
    """Return an error as one sentence, with the hint in brackets."""
    if isinstance(error, CkptcheckError):
        return error.message + (f" ({error.hint})" if error.hint else "")
    if (shortage := describe_shortage(error)) is not None:
        return shortage
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"  # a bug of ours


def _refuse_outputs(command: Any, reports: Sequence[Path], ctx: Any) -> None:
    """Raise OutputError if a report cannot be written, UsageError if it would replace another input or output."""
    from ckptcheck.text.file_io import require_distinct_outputs, require_writable

    declared = find_declared(command)
    outputs = {
        each.flag(): Path(ctx.params[name])
        for name, each in declared.items()
        if each.is_written and ctx.params.get(name) is not None
    }
    for number, output in enumerate(reports):
        require_distinct_outputs({**outputs, **{f"-o {each}": each for each in reports[:number]}, "-o": output})
        with contextlib.suppress(ValueError):  # an argument with a NUL in it is no file
            for name, each in declared.items() if output.is_file() else ():
                if not each.is_written and _is_among(output, ctx.params.get(name)):
                    raise UsageError(
                        f"{output} is what the command reads, and would be overwritten", hint="give -o another name"
                    )
        require_writable(output)


def _is_among(output: Path, value: object) -> bool:
    """Whether a file is one of those that a parameter names."""
    words = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(word, str) and Path(word).is_file() and output.samefile(word) for word in words)


def _write_failure(ctx: Any, reason: str) -> None:
    """Write reports that say why nothing could be checked. In a terminal the sentence on stderr is enough."""
    from ckptcheck.cli.output import write_reports

    reports = [Report(target, error=reason) for target in _list_targets(ctx)]
    for form, output in list_outputs(ctx.params):
        if output is not None or form != "text":
            with contextlib.suppress(CkptcheckError, OSError, MemoryError):
                write_reports(reports, (), form, output)


def _list_targets(ctx: Any) -> list[str]:
    """Return the targets of the command, one for each report that it would have written."""
    words = _list_words(ctx)
    if not words:
        return [ctx.info_name or "ckptcheck"]
    if {"first", "second"} <= ctx.params.keys():
        return [" ↔ ".join(words)]
    return words if {"targets", "files"} & ctx.params.keys() else words[:1]


def _list_words(ctx: Any) -> list[str]:
    """Return the values of the arguments that are no options, in their order."""
    words: list[str] = []
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name)
        if parameter.param_type_name == "argument" and value is not None:
            words += map(str, value if isinstance(value, (list, tuple)) else [value])
    return words
