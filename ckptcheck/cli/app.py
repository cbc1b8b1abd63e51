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
from typing import Any, ClassVar, NoReturn

import click

from ckptcheck.cli.examples import write_examples
from ckptcheck.cli.output import INTERRUPTED
from ckptcheck.cli.report_command import CONTEXT_SETTINGS, PanelOption, describe_error
from ckptcheck.cli.verb_command import make_command
from ckptcheck.errors import CkptcheckError, describe_shortage
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import break_commands
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.verbs import VERBS


class CommandGroup(click.Group):
    """Lists its commands with the first paragraph of their help. click alone cuts it in the middle of a sentence."""

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

    def invoke(self, ctx: Any) -> Any:
        """Run the command. click alone writes an empty line after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

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
RULE_CODE = re.compile(r"[A-Za-z]{2,4}[0-9]{3}")
"""The code of a rule as users write it."""


def build_app(*first_words: str) -> click.Group:
    """Return the command line with the command that these words begin with, or with all commands if they begin with none.

    Importing and building all of them takes longer than the scan of a small checkpoint.
    """
    named = select_commands(first_words)
    options: list[click.Parameter] = [
        PanelOption(["--version", "-V"], "", is_flag=True, help="Print the version and exit.")
    ]
    if named == [*VERBS]:
        from ckptcheck.cli.completion import list_options

        options += list_options()
    command_line = NestedCommandGroup(
        "ckptcheck",
        help="Checks model checkpoints before a job does. Exit codes: 0 clean, 1 findings, 2 could not check.",
        params=options,
        callback=_print_version,
        invoke_without_command=True,
        subcommand_metavar="COMMAND [ARGS]...",
        no_args_is_help=True,
        context_settings=CONTEXT_SETTINGS,
    )
    groups: dict[str, CommandGroup] = {}
    for words in named:
        first, _, second = words.partition(" ")
        if first not in GROUPS:
            command_line.add_command(make_command(words, words))
            continue
        if first not in groups:
            groups[first] = CommandGroup(
                first, help=GROUPS[first], no_args_is_help=True, context_settings=CONTEXT_SETTINGS
            )
            command_line.add_command(groups[first])
        groups[first].add_command(make_command(words, second))
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


def _print_version(version: bool) -> None:
    if version:
        from ckptcheck import __version__

        click.echo(f"ckptcheck {__version__}")
        raise click.exceptions.Exit


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
    except (KeyboardInterrupt, click.Abort):
        _exit_with_error("interrupted", code=INTERRUPTED)
    except BrokenPipeError:
        # the reader of our output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit_now(2)
    except OSError as error:
        _exit_with_error(describe_error(error))
    except click.exceptions.NoArgsIsHelpError as error:
        # the user named no command: the message is the help
        with contextlib.suppress(OSError):
            sys.stdout.write(error.format_message() + "\n")
            sys.stdout.flush()
        _exit_now(2)
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        message = message.replace("not a valid integer range", "no whole number")
        _exit_with_error(message.replace("not a valid float range", "no number"), _point_to_help(error))
    except Exception as error:
        if describe_shortage(error) is not None:
            _exit_with_error(describe_error(error))
        # a bug of ours: nothing was checked, and exit code 1 would mean findings
        traceback.print_exc()
        _exit_now(2)


def _run_command_line() -> Any:
    sys.argv[1:] = _translate_help(sys.argv[1:])
    command_line = build_app(*sys.argv[1:3])
    try:
        return command_line(standalone_mode=False)
    except SystemExit as error:
        if not error.code:
            raise  # a shell has asked for the words to offer
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
