"""The entry point of the command: answers ``--version`` at once and passes everything else to the command line."""

import errno
import gc
import io
import os
import sys

from ckptcheck.runners import import_path

# Python has imported all of the above at its start; what comes next would come from the working directory.
sys.path[:] = import_path.without_working_directory(sys.path)


YOUNG_OBJECTS = 50_000
"""New objects that may refer to each other in circles, after which Python looks for garbage among them."""


def main() -> None:
    """Run the command line. ``--version`` is answered before anything heavy is imported."""
    # Imports make many objects and no garbage: searching them after each 700 takes a twentieth of a small scan.
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        _open_closed_streams()
        _buffer_output()
        if sys.argv[1:] == ["--version"]:
            _print_version()
            return
        from ckptcheck.cli.app import main as command_line
        from ckptcheck.text.encoding import accept_every_sign

        accept_every_sign(sys.stdout, sys.stderr)
        command_line()
    # while all that was imported; later the command line answers both
    except KeyboardInterrupt:
        _exit_with("interrupted", 130)
    except (ImportError, MemoryError, OSError) as error:
        _exit_with(f"it cannot be started here: {type(error).__name__}: {error}", 2)


def _exit_with(message: str, code: int) -> None:
    sys.stderr.write(f"ckptcheck: {message}\n")
    sys.stderr.flush()
    os._exit(code)


def _print_version() -> None:
    from ckptcheck import __version__

    try:
        sys.stdout.write(f"ckptcheck {__version__}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"ckptcheck: the output: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(2)


class ClosedOutput(io.RawIOBase):
    """A standard output that was closed. Writing fails, so that a report that nobody can read is not taken for a clean one."""

    def writable(self) -> bool:
        """Return True: only then is a write tried, and fails with its reason."""
        return True

    def write(self, _: object) -> int:
        """Raise OSError."""
        raise OSError(errno.EBADF, "standard output is closed")


KEPT_OPEN: list[object] = []
"""Streams that nobody else refers to, and that would be closed without a reference."""


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed (``>&-``).

    Else the next socket that opens would take the number of standard output, and child processes would write to it.
    """
    is_output_closed = sys.stdout is None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - stays open until the process ends
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
    if is_output_closed:
        # the null device has to stay open as number 1
        KEPT_OPEN.append(sys.stdout)
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(ClosedOutput()), encoding="utf-8")


def _buffer_output() -> None:
    """Give standard output a buffer if PYTHONUNBUFFERED took it, as in many images of containers. Lines are still written at once.

    Python writes without a buffer only once: if a disk that fills up takes half of a report, the rest is lost without an error.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.FileIO):
        KEPT_OPEN.append(stream)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(stream.buffer), encoding=stream.encoding, errors=stream.errors, line_buffering=True
        )


if __name__ == "__main__":
    main()
