"""The entry point of the command: answers ``--version`` at once and passes everything else to the command line."""

import os
import sys


def main() -> None:
    """Run the command line. ``--version`` is answered before anything heavy is imported."""
    if sys.argv[1:] == ["--version"]:
        from ckptcheck import __version__

        sys.stdout.write(f"ckptcheck {__version__}\n")
        return
    try:
        _open_closed_streams()
        _import_typer()
        from ckptcheck.cli.app import main as command_line
        from ckptcheck.text.encoding import accept_every_sign

        accept_every_sign(sys.stdout, sys.stderr)
        command_line()
    except KeyboardInterrupt:  # while all that was imported; later the command line answers it
        sys.stderr.write("ckptcheck: interrupted\n")
        sys.stderr.flush()
        os._exit(130)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed (``>&-``).

    Else the next socket that opens would take the number of standard output, and child processes would write to it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - stays open until the process ends
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)


def _import_typer() -> None:
    """Import typer without pydantic. Where it is installed typer loads it, which takes longer than everything else we import."""
    if "pydantic" in sys.modules:
        return
    sys.modules["pydantic"] = None  # type: ignore[assignment]
    try:
        import typer  # noqa: F401
    finally:
        del sys.modules["pydantic"]


if __name__ == "__main__":
    main()
