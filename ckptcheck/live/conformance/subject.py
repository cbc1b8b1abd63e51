"""The interface of a transport under test, with its receiver; the engines and a user's own class implement it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.faults import Event, Fault


class ReceiverLost(CkptcheckError):
    """The receiver no longer runs, or cannot be read; the kit starts it again."""


@dataclass(frozen=True)
class Reply:
    """How the transport answered an update."""

    ok: bool
    """Whether it reported success."""
    message: str = ""
    """The text of its error."""
    is_heard: bool = True
    """Whether the sender lives to hear an answer."""
    has_ended: bool = True
    """Whether it answered in time."""
    has_died: bool = False
    """Whether the receiver's process ended."""
    refusal: str = ""
    """How it refused a second update, or a sleep, during an update that then went on."""
    note: str = ""
    """A further observation, for the table."""
    undetectable: str = ""
    """Why the receiver could not detect the fault; "" if it could."""
    misreport: str = ""
    """A fault that does not show in the weights, such as tokens without the version of their weights."""


@dataclass(frozen=True)
class ReceiverState:
    """The receiver's tensors."""

    digests: Mapping[str, str]
    """Tensor → digest; "" if its numbers cannot be read."""
    derived: frozenset[str] = field(default_factory=frozenset)
    """Tensors that the receiver computes from others or uses as scratch memory."""


class Subject(Protocol):
    """A transport under test, from the sender's buckets to the receiver's memory."""

    target: str
    """The name that the user gave."""
    title: str
    """One line that describes it."""
    buckets: Sequence[Sequence[str]]
    """The names of the tensors in each bucket."""

    @property
    def has_wire(self) -> bool:
        """Whether a bucket can be announced and then lost, because its bytes travel apart from the announcement."""
        ...

    @property
    def pause_modes(self) -> Sequence[str]:
        """The receiver's ways to treat running requests during an update; ("",) if it has only one."""
        ...

    def find_obstacle(self, fault: Fault) -> str:
        """Return why this transport cannot have this fault; "" if it can."""
        ...

    def update(self, fault: Fault | None, events: Sequence[Event], version: str) -> Reply:
        """Send one update. fault: None for a sound one. version: a new one, unless the fault is a version that stands still.

        Never raises for a failure of the transport or its receiver.
        """
        ...

    def read_state(self) -> ReceiverState:
        """Return the receiver's tensors. Raises ReceiverLost if it does not run."""
        ...

    def expected_state(self, values: int) -> Mapping[str, str]:
        """Return reference digests, independent of this transport: of a cold load, or of the sent tensors; {} without either."""
        ...

    def write_marks(self) -> int:
        """Write marks over the receiver's weights; return the number of marked tensors, 0 if it cannot."""
        ...

    def find_marks(self) -> Sequence[str]:
        """Return the tensors that still hold marks."""
        ...

    def version(self) -> str | None:
        """Return the version of the weights that the receiver reports; None if it reports none."""
        ...

    def end_update(self) -> bool:
        """End an update that a fault left open; return False if the receiver has no call for that, or refuses it."""
        ...

    def restart(self) -> None:
        """Start the receiver anew. Raises CkptcheckError if it does not start."""
        ...

    def close(self) -> None:
        """End everything; may be called twice."""
        ...
