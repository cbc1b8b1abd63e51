"""The observer of long work, which receives messages and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

Advance = Callable[[int, int], None]
"""Receives the amount that is done and the whole amount."""


class Observer:
    """Ignores everything. The command line has one that writes to stderr (``ckptcheck.cli.output``)."""

    def log(self, message: str) -> None:
        """Receive one sentence about what happens now."""

    def note_report(self, report: object) -> None:
        """Receive the `linter.report.Report` of a target; before its values are read, that of what is known by then."""

    def keep(self, evidence: object) -> None:
        """Receive the evidence of a target before it is read. A process that ends after the last one need not free it."""

    def progress(self, label: str, *, bytewise: bool = True) -> AbstractContextManager[Advance | None]:
        """Return a context in which work on `label` runs; it gives the function that counts, or None without an audience.

        bytewise: the work counts bytes, else files, prompts or sequences.
        """
        return nullcontext(None)

    def phase(self, label: str, most: float | None = None) -> AbstractContextManager[None]:
        """Return a context for a phase without a count.

        most: the phase's time limit in seconds; None if unknown.
        """
        self.log(label)
        return nullcontext()

    @contextmanager
    def stages(self) -> Iterator[Callable[[str], None]]:
        """Give a function that begins the next stage of the work; each stage is a phase until the next begins or the block ends."""
        with ExitStack() as running:

            def begin(label: str) -> None:
                running.close()
                running.enter_context(self.phase(label))

            yield begin


SILENT = Observer()
"""For callers that name no observer."""
