"""The person or program that follows long work: it receives messages, and how far the work is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

Advance = Callable[[int, int], None]
"""Is called with how much is done and how much there is in all."""


class Observer:
    """Ignores everything. The command line has one that writes to stderr (``ckptcheck.cli.output``)."""

    def log(self, message: str) -> None:
        """Receive one sentence about what happens now."""

    def progress(self, label: str, *, bytewise: bool = True) -> AbstractContextManager[Advance | None]:
        """Return a context in which work on `label` runs; it gives the function that counts, or None where nobody looks.

        bytewise: the work counts bytes, else files, prompts or sequences.
        """
        return nullcontext(None)

    def phase(self, label: str, most: float | None = None) -> AbstractContextManager[None]:
        """Return a context in which a phase runs that counts nothing.

        most: seconds after which it is given up; None if nobody knows.
        """
        self.log(label)
        return nullcontext()

    @contextmanager
    def stages(self) -> Iterator[Callable[[str], None]]:
        """Give a function that begins one stage of the work after the other: each is a phase until the next, or the block, ends."""
        with ExitStack() as running:

            def begin(label: str) -> None:
                running.close()
                running.enter_context(self.phase(label))

            yield begin


SILENT = Observer()
"""For callers that name no observer."""
