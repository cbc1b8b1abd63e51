"""What the kit asks of a transport together with its receiver; the engines and a user's own class answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.faults import Event, Fault


class ReceiverLost(CkptcheckError):
    """The receiver does not run any more, or cannot be read; the kit starts it again."""


@dataclass(frozen=True)
class Reply:
    """How the transport answered an update."""

    ok: bool
    """Whether it reported success."""
    message: str = ""
    """What it said: the text of its error."""
    is_heard: bool = True
    """Whether somebody was left to hear an answer: nobody is after the sender's death."""
    has_ended: bool = True
    """Whether it answered in time."""
    has_died: bool = False
    """Whether the receiver's process ended."""
    refusal: str = ""
    """How it refused a second update or a sleep in the midst of the update, which went on."""
    note: str = ""
    """What else was seen, for the table."""
    undetectable: str = ""
    """Why nobody could have seen the fault, "" where somebody could."""
    misreport: str = ""
    """What only ckptcheck's checks beside the weights show, such as tokens without the version of their weights."""


@dataclass(frozen=True)
class ReceiverState:
    """What the receiver holds."""

    digests: Mapping[str, str]
    """Tensor → digest, "" where its numbers cannot be read."""
    derived: frozenset[str] = field(default_factory=frozenset)
    """Tensors that the receiver computes from others or uses as scratch memory."""


class Subject(Protocol):
    """A transport under test, from the sender's buckets to the receiver's memory."""

    target: str
    """As the user named it."""
    title: str
    """One line that says what it is."""
    buckets: Sequence[Sequence[str]]
    """The names of the tensors in each bucket."""

    @property
    def has_wire(self) -> bool:
        """Whether a bucket can be announced and lost: it is announced apart from its bytes."""
        ...

    @property
    def pause_modes(self) -> Sequence[str]:
        """What the receiver can do with running requests during an update; ("",) where there is no choice."""
        ...

    def find_obstacle(self, fault: Fault) -> str:
        """Return why this fault cannot be put on this transport, "" where it can."""
        ...

    def update(self, fault: Fault | None, events: Sequence[Event], version: str) -> Reply:
        """Send one update. fault: None for a sound one. version: a new one, except where the fault is that it stands still.

        Never raises for what the transport or its receiver does.
        """
        ...

    def read_state(self) -> ReceiverState:
        """Return what the receiver holds. Raises ReceiverLost where it does not run."""
        ...

    def expected_state(self, values: int) -> Mapping[str, str]:
        """Return the digests that do not come from an update by this transport: of a cold load, or of what is sent; {} if none."""
        ...

    def write_marks(self) -> int:
        """Write marks over the weights that the receiver holds; return over how many tensors, 0 where none can be written."""
        ...

    def find_marks(self) -> Sequence[str]:
        """Return the tensors that still hold marks."""
        ...

    def version(self) -> str | None:
        """Return the version of the weights that the receiver reports, None if it reports none."""
        ...

    def end_update(self) -> bool:
        """End an update that a fault left open; return whether the receiver has a call for that, and took it."""
        ...

    def restart(self) -> None:
        """Start the receiver anew. Raises CkptcheckError where it does not start."""
        ...

    def close(self) -> None:
        """End everything; may be called twice."""
        ...
