"""The table of commands, and the single place that turns an error into a sentence and an exit code.

What writes that sentence is imported at the beginning: a process that may open no more files imports nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

import typer
import typer.core

from ckptcheck.cli.examples import write_examples
from ckptcheck.cli.output import INTERRUPTED
from ckptcheck.cli.report_command import ReportCommand, describe_error
from ckptcheck.cli.verb_command import make_command
from ckptcheck.errors import CkptcheckError, describe_shortage
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import break_commands
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.verbs import VERBS


class CommandGroup(typer.core.TyperGroup):
    """Lists its commands with the first paragraph of their help. Typer alone cuts it in the middle of a sentence."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Headings → the commands below each; {}: one heading for all."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below their headings, in the order in which they were added."""
        for heading, names in (self.sections or {"Commands": tuple(self.commands)}).items():
            rows = [
                (name, " ".join((self.commands[name].help or "").partition("\n\n")[0].split()))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the group."""
        write_examples(ctx, formatter)


class NestedCommandGroup(CommandGroup):
    """The commands of the first level. Also resolves one of two words whose first word is a command: ``refit history FILE``."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Checkpoints": ("scan", "diff", "manifest", "verify", "sign", "identity", "series", "join", "critic"),
        "Weight syncs": ("refit", "refit history", "refit lora", "attach", "conformance"),
        "Parity of engine and trainer": ("parity",),
        "Jobs": ("preflight", "gate"),
        "Rules, reports and engines": ("rules", "rule", "report", "doctor", "engine"),
    }

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Offer the commands of one word: a shell would take the second word of ``refit history`` for another argument."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Join the first two words where they name a command; a file of that name is ``./history``."""
        if (two_words := " ".join(args[:2])) in self.commands and len(args) > 1:
            args = [two_words, *args[2:]]
        return super().resolve_command(ctx, args)


GROUPS = {
    "parity": "Measure the gap between an engine's logprobs and a trainer's.",
    "engine": "Build, list and remove the isolated Python environments that vLLM, SGLang, Megatron and RL frameworks run in.",
}
"""First words of commands that are not commands themselves → their help."""
GROUP_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # its tables cut the names of long options where the terminal has 80 columns
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
RULE_CODE = re.compile(r"[A-Za-z]{2,4}[0-9]{3}")
"""The code of a rule as users write it."""


def build_app(*first_words: str) -> typer.Typer:
    """Return the command line with the command that these words begin with, or with all commands if they begin with none.

    Importing and building all of them takes longer than the scan of a small checkpoint.
    """
    named = select_commands(first_words)
    command_line = typer.Typer(
        name="ckptcheck",
        cls=NestedCommandGroup,
        help="Checks model checkpoints before a job does. Exit codes: 0 clean, 1 findings, 2 could not check.",
        add_completion=named == [*VERBS],
        pretty_exceptions_enable=False,
        **GROUP_SETTINGS,
    )
    command_line.callback(invoke_without_command=True)(_print_version)
    groups: dict[str, typer.Typer] = {}
    for words in named:
        first, _, second = words.partition(" ")
        if first not in GROUPS:
            command_line.command(words, cls=ReportCommand)(make_command(words))
            continue
        if first not in groups:
            groups[first] = typer.Typer(cls=CommandGroup, help=GROUPS[first], **GROUP_SETTINGS)
            command_line.add_typer(groups[first], name=first)
        groups[first].command(second, cls=ReportCommand)(make_command(words))
    return command_line


def select_commands(words: Sequence[str]) -> list[str]:
    """Return the commands that words on the command line may mean: one, a group's commands, or all.

    >>> select_commands(["scan", "sound"]), select_commands(["engine", "--help"])
    (['scan'], ['engine install', 'engine list', 'engine remove'])
    """
    two_words = " ".join(words[:2])
    if two_words in VERBS and two_words.count(" ") and words[0] in GROUPS:
        return [two_words]
    return [name for name in VERBS if words and name.partition(" ")[0] == words[0]] or [*VERBS]


def _print_version(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from ckptcheck import __version__

        typer.echo(f"ckptcheck {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. An error is one sentence on stderr and exit code 2, never a traceback."""
    try:
        code = _run_command_line()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        # Python would free every object of a large checkpoint one by one, which takes longer than the scan
        _exit_now(code or 0)
    except CkptcheckError as error:
        _exit_with_error(error.message, error.hint)
    except (KeyboardInterrupt, typer.Abort):
        _exit_with_error("interrupted", code=INTERRUPTED)
    except BrokenPipeError:
        # the reader of our output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit_now(2)
    except OSError as error:
        _exit_with_error(describe_error(error))
    except Exception as error:
        # A usage error has a method `format_message`. Its class belongs to whichever click typer bundles.
        if describe_shortage(error) is not None:
            _exit_with_error(describe_error(error))
        if (format_message := getattr(error, "format_message", None)) is None:
            # a bug of ours: nothing was checked, and exit code 1 would mean findings
            traceback.print_exc()
            _exit_now(2)
        if type(error).__name__ == "NoArgsIsHelpError":
            # the user named no command: the message is the help
            with contextlib.suppress(OSError):
                sys.stdout.write(format_message() + "\n")
                sys.stdout.flush()
            _exit_now(2)
        message = format_message().rstrip(".").replace("Value error, ", "")
        message = message.replace("not a valid int range", "no whole number").replace(
            "not a valid float range", "no number"
        )
        _exit_with_error(message, _point_to_help(error))


def _run_command_line() -> Any:
    sys.argv[1:] = _translate_help(sys.argv[1:])
    command_line = build_app(*sys.argv[1:3])
    try:
        return command_line(standalone_mode=False)
    except SystemExit as error:
        if not error.code:
            raise  # a completion was printed or installed
        # click exits with 1 when the pipe is closed, which would mean findings
        raise BrokenPipeError from error


def _translate_help(words: list[str]) -> list[str]:
    """Return what ``help …`` stands for: ``… --help``, or the page of a rule that is named by its code."""
    if words[:1] != ["help"]:
        return words
    asked = words[1:]
    if len(asked) == 1 and RULE_CODE.fullmatch(asked[0]):
        return ["rule", asked[0].upper()]
    return [*asked, "--help"]


def _point_to_help(error: Exception) -> str:
    """Name the help that explains a usage error: the command's, or the general one if no command was recognized."""
    words = sys.argv[2:] if sys.argv[1:2] == ["help"] else sys.argv[1:]
    first_word = "".join(words[:1])
    if RULE_CODE.fullmatch(first_word):
        return f"ckptcheck rule {first_word.upper()} prints the page of that rule"
    if first_word and (Path(first_word).exists() or is_remote_address(first_word)):
        return f"ckptcheck scan {first_word} checks it; ckptcheck --help lists the commands"
    if first_word not in VERBS and (inner := next((name for name in VERBS if name.split()[1:] == [first_word]), "")):
        return f"ckptcheck {inner} is the command"
    path = (
        str(getattr(getattr(error, "ctx", None), "command_path", ""))
        .partition(" ")[2]
        .removeprefix("-m ckptcheck")
        .strip()
    )
    if not path:  # an option lacks its value: that error names no command
        names = (" ".join(words[:2]), first_word)
        path = next((name for name in names if name in VERBS or name in GROUPS), "")
    return f"see ckptcheck {path} --help" if path else "see ckptcheck --help, ckptcheck scan --help"


def _exit_with_error(message: str, hint: str | None = None, code: int = 2) -> NoReturn:
    text = _wrap(f"ckptcheck: {printable(message)}") + (_wrap(f"           {printable(hint)}") if hint else "")
    # OSError: the terminal was closed
    with contextlib.suppress(OSError):
        sys.stderr.write(break_commands(text))
    _exit_now(code)


def _wrap(line: str) -> str:
    """Wrap a line between its words if stderr is a terminal; a pipe gets it whole, so that grep works."""
    if not sys.stderr.isatty():
        return line + "\n"
    import shutil
    import textwrap

    width, margin = max(shutil.get_terminal_size().columns, 30), " " * 11
    return (
        textwrap.fill(
            line, width, subsequent_indent=margin, drop_whitespace=True, break_long_words=False, break_on_hyphens=False
        )
        + "\n"
    )


def _exit_now(code: int) -> NoReturn:
    """Exit without waiting for threads that still read from a slow disk or network. What was written so far is not lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
