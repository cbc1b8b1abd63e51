"""The entry point: answers ``--version`` at once and hands everything else to the command line."""

import sys


def main() -> None:
    """Run the command line; ``--version`` is answered before anything heavy is imported."""
    if sys.argv[1:] == ["--version"]:
        from ckptcheck import __version__

        sys.stdout.write(f"ckptcheck {__version__}\n")
        return
    _import_typer()
    from ckptcheck.cli.app import main as command_line

    command_line()


def _import_typer() -> None:
    """Import typer without pydantic: where that is installed, typer loads it, which takes longer than all that we import."""
    if "pydantic" in sys.modules:
        return
    sys.modules["pydantic"] = None  # type: ignore[assignment]
    try:
        import typer  # noqa: F401
    finally:
        del sys.modules["pydantic"]


if __name__ == "__main__":
    main()
