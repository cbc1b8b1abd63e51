"""The entry point: answers ``--version`` at once and hands everything else to the command line."""

import sys


def main() -> None:
    """Run the command line; ``--version`` is answered before anything heavy is imported."""
    if sys.argv[1:] == ["--version"]:
        from ckptcheck import __version__

        sys.stdout.write(f"ckptcheck {__version__}\n")
        return
    from ckptcheck.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
