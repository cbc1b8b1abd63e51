"""The verbs, and the one place that turns trouble into a sentence and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer

from ckptcheck.cli.verbs import Verbs
from ckptcheck.errors import CkptcheckError

INTERRUPTED = 130
"""What typer returns after Ctrl-C. Here it is one more way of not having checked: 2."""


class TwoWords(Verbs):
    """Also knows commands of two words, beside the one-word command they begin with: ``refit history FILE``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take two words where both together name a command; a file of that name is ``./history``."""
        if (both := " ".join(args[:2])) in self.commands and len(args) > 1:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)


VERBS = {
    "scan": "scan",
    "diff": "diff",
    "refit": "refit",
    "preflight": "preflight",
    "refit history": "history",
    "manifest": "manifest",
    "verify": "manifest",
    "rules": "rules",
    "rule": "rules",
    "doctor": "doctor",
    "engine": "engine",
    "parity": "parity",
}
"""Verb → the module of ckptcheck.cli that holds it, in the order of the help."""


def app(first: str = "") -> typer.Typer:
    """Return the command line, with the verb that it begins with, or with all of them where it begins with none.

    To import and to build all takes longer than the scan of a small checkpoint.
    """
    made = typer.Typer(
        name="ckptcheck",
        cls=TwoWords,
        help="Checks model checkpoints before a job does. Exit codes: 0 clean, 1 findings, 2 could not check.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut the names of long options where the terminal has 80 columns
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_version)
    for verb in [verb for verb in VERBS if verb.partition(" ")[0] == first] or VERBS:
        found = getattr(importlib.import_module(f"ckptcheck.cli.{VERBS[verb]}"), verb.rpartition(" ")[2])
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=verb)
        else:
            made.command(verb)(found)
    return made


def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from ckptcheck import __version__

        typer.echo(f"ckptcheck {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. Trouble is one sentence on stderr and exit code 2, never a traceback."""
    try:
        code = _run()
        if code == INTERRUPTED:
            _stop("interrupted")
        sys.stdout.flush()
        _leave(code or 0)  # to take a large checkpoint's evidence apart takes longer than it took to judge it
    except CkptcheckError as error:
        _stop(error.message, error.hint)
    except KeyboardInterrupt:
        _stop("interrupted")
    except typer.Abort:
        _stop("interrupted")
    except BrokenPipeError:  # the reader of our output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(2)
    except OSError as error:
        _stop(f"{error.filename or 'the output'}: {error.strerror or error}")
    except Exception as error:
        # A wrong flag. Its class belongs to whichever click typer carries, so it is known by what it can do.
        if (sentence := getattr(error, "format_message", None)) is None:
            traceback.print_exc()  # a fault of ours: nothing was checked, and 1 would mean findings
            _leave(2)
        if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: its sentence is the help
            with contextlib.suppress(OSError):
                sys.stdout.write(sentence() + "\n")
                sys.stdout.flush()
            _leave(2)
        _stop(sentence().rstrip(".").replace("Value error, ", ""), _where(error))


def _run() -> Any:
    verbs = app(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        return verbs(standalone_mode=False)
    except SystemExit as error:  # click's own answer to a closed pipe; its 1 would mean findings
        raise BrokenPipeError from error


def _where(error: Exception) -> str:
    """Whose help tells more: that of the command with the wrong flag, and of all where it is no command."""
    path = (
        str(getattr(getattr(error, "ctx", None), "command_path", ""))
        .partition(" ")[2]
        .removeprefix("-m ckptcheck")
        .strip()
    ) or _command(sys.argv[1:])
    return f"see ckptcheck {path} --help" if path else "see ckptcheck --help, ckptcheck scan --help"


def _command(words: list[str]) -> str:
    """Return the command that these words begin with, "" for none: an error of an option without its value names none."""
    verb, both = "".join(words[:1]), " ".join(words[:2])
    if both in VERBS or verb not in VERBS:
        return both if both in VERBS else ""
    held = getattr(importlib.import_module(f"ckptcheck.cli.{VERBS[verb]}"), verb)
    inside = isinstance(held, typer.Typer) and len(words) > 1 and not words[1].startswith("-")
    return both if inside else verb


def _stop(message: str, hint: str | None = None) -> NoReturn:
    from ckptcheck.reporters.printable import printable

    text = f"ckptcheck: {printable(message)}\n" + (f"           {printable(hint)}\n" if hint else "")
    with contextlib.suppress(OSError):  # a terminal that was closed
        sys.stderr.write(text)
    _leave(2)


def _leave(code: int) -> NoReturn:
    """Exit at once: threads that still wait for a slow disk or network must not hold the user up."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)
