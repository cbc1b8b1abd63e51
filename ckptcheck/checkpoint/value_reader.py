"""The protocol by which a checkpoint reads the values of its tensors, and the reader that reads none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Runner

if TYPE_CHECKING:
    # An upward import for types only: what a reader returns is defined by the value pass, which reads checkpoints.
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.source import Source
    from ckptcheck.values.stats import ValueStats


class ValueReader(Protocol):
    """Reads the values of a checkpoint when a rule first asks for them; `values.value_pass.ValuePass` does."""

    @property
    def runner(self) -> Runner | None:
        """What runs passes over all bytes; None: threads of this process."""
        ...

    def unavailable_reason(self, source: Source) -> str | None:
        """Return why the values of this source are not read, as the reason of a skip; None where they are read."""
        ...

    def start(self, ckpt: Checkpoint) -> None:
        """Begin to read now, in other processes where that helps; the caller has to call `close` at the end."""
        ...

    def read(self, ckpt: Checkpoint) -> ValueStats:
        """Read all values and return their statistics. Raises Skip where they are not read."""
        ...

    def close(self) -> None:
        """End what `start` began."""
        ...


class UnreadValues:
    """The reader that reads no values: rules about values are skipped with its reason."""

    runner = None

    def __init__(self, reason: str = "the values were not read") -> None:
        self._reason = reason

    def unavailable_reason(self, source: Source) -> str:
        """Return the reason."""
        return self._reason

    def start(self, ckpt: Checkpoint) -> None:
        """Do nothing."""

    def read(self, ckpt: Checkpoint) -> ValueStats:
        """Raise Skip."""
        raise Skip(self._reason)

    def close(self) -> None:
        """Do nothing."""
