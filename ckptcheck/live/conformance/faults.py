"""The faults that the kit puts on a transport, as the events of one update, and the interface of a transport under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.errors import CkptcheckError

OLD, NEW = 0, 1
"""The two sets of weights: those that the receiver holds before a fault, and those that the faulty update brings."""

FaultKind = Literal[
    "poison", "drop", "drop-tensor", "lose", "duplicate", "stale-duplicate", "reorder", "delay", "truncate",
    "kill-sender", "kill-receiver", "still-version", "two-updates", "generation", "sleep",
]  # fmt: skip

TITLES: dict[FaultKind, str] = {
    "poison": "marks are written over the weights before a sound update",
    "drop": "a bucket is never sent",
    "drop-tensor": "a tensor is missing from its bucket",
    "lose": "a bucket is announced and lost on the wire",
    "duplicate": "a bucket is sent twice",
    "stale-duplicate": "a bucket of the update before arrives once more at the end",
    "reorder": "the buckets come in reverse order",
    "delay": "a bucket comes late",
    "truncate": "the last tensor of a bucket has half its rows",
    "kill-sender": "the sender dies",
    "kill-receiver": "a receiver dies",
    "still-version": "new weights come under the version of the old ones",
    "two-updates": "a second update runs between two buckets of the first",
    "generation": "an update comes while a response is generated",
    "sleep": "the receiver sleeps and wakes between two buckets",
}
"""Fault → what happens, for tables; in the order in which the kit tries them."""


@dataclass(frozen=True)
class Parcel:
    """A bucket on its way."""

    bucket: int
    values: int = NEW
    """The set of weights that it belongs to."""
    is_cut: bool = False
    """Whether its last tensor has half its rows."""
    lacks_tensor: bool = False
    """Whether its last tensor is missing."""
    is_lost: bool = False
    """Whether it is announced to the receiver and never arrives."""


@dataclass(frozen=True)
class Interruption:
    """Something that happens between two buckets."""

    kind: Literal["delay", "sender-dies", "receiver-dies", "sleep", "begin", "end"]
    """begin, end: of a second update within the first."""
    seconds: float = 0.0


Event = Parcel | Interruption


@dataclass(frozen=True)
class Fault:
    """One fault at one place."""

    kind: FaultKind
    events: tuple[Event, ...]
    place: str = ""
    """The place among the buckets; "" if the place does not matter."""

    @property
    def loses_weights(self) -> bool:
        """Whether a part of the weights never arrives."""
        return self.kind in ("drop", "drop-tensor", "lose", "truncate", "kill-sender")


def send_all(buckets: int, values: int = NEW) -> tuple[Event, ...]:
    """Return the events of a sound update."""
    return tuple(Parcel(number, values) for number in range(buckets))


def plan_faults(
    buckets: int, *, has_wire: bool = False, pause_modes: Sequence[str] = ("",), delay: float = 2.0
) -> list[Fault]:
    """Return all faults for an update of so many buckets, at least two.

    has_wire: whether buckets are announced apart from their bytes. pause_modes: the ways to treat running requests.
    delay: seconds that a bucket is late.
    """
    sound = send_all(buckets)
    middle = buckets // 2

    def at(number: int) -> str:
        return f"bucket {number + 1} of {buckets}"

    def replace(number: int, *events: Event) -> tuple[Event, ...]:
        return (*sound[:number], *events, *sound[number + 1 :])

    faults = [Fault("drop", replace(number), at(number)) for number in range(buckets)]
    faults += [
        Fault("drop-tensor", replace(middle, Parcel(middle, lacks_tensor=True)), at(middle)),
        *([Fault("lose", replace(middle, Parcel(middle, is_lost=True)), at(middle))] if has_wire else []),
        Fault("duplicate", replace(middle, Parcel(middle), Parcel(middle)), at(middle)),
        Fault("stale-duplicate", (*sound, Parcel(0, OLD)), at(0)),
        Fault("reorder", sound[::-1]),
        Fault("delay", replace(middle, Interruption("delay", delay), Parcel(middle)), at(middle)),
        Fault("truncate", replace(middle, Parcel(middle, is_cut=True)), at(middle)),
    ]
    faults += [
        Fault(
            "kill-sender",
            (*sound[:number], Interruption("sender-dies")),
            f"before {at(number)}" if number < buckets else "after the last bucket, before the end",
        )
        for number in range(buckets + 1)
    ]
    second = (Interruption("begin"), *send_all(buckets, OLD), Interruption("end"))
    return [
        *faults,
        Fault("still-version", sound),
        Fault("two-updates", (*sound[:middle], *second, *sound[middle:]), f"before {at(middle)}"),
        *(Fault("generation", sound, mode) for mode in pause_modes),
        Fault("sleep", (*sound[:middle], Interruption("sleep"), *sound[middle:]), f"before {at(middle)}"),
        # last, because it ends the receiver's process
        Fault("kill-receiver", (*sound[:middle], Interruption("receiver-dies"), *sound[middle:]), f"before {at(middle)}"),
    ]  # fmt: skip


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


class Subject(ABC):
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
        return False

    @property
    def pause_modes(self) -> Sequence[str]:
        """The receiver's ways to treat running requests during an update; ("",) if it has only one."""
        return ("",)

    @abstractmethod
    def find_obstacle(self, fault: Fault) -> str:
        """Return why this transport cannot have this fault; "" if it can."""

    @abstractmethod
    def update(self, fault: Fault | None, events: Sequence[Event], version: str) -> Reply:
        """Send one update. fault: None for a sound one. version: a new one, unless the fault is a version that stands still.

        Never raises for a failure of the transport or its receiver.
        """

    @abstractmethod
    def read_state(self) -> ReceiverState:
        """Return the receiver's tensors. Raises ReceiverLost if it does not run."""

    @abstractmethod
    def expected_state(self, values: int) -> Mapping[str, str]:
        """Return reference digests, independent of this transport: of a cold load, or of the sent tensors; {} without either."""

    @abstractmethod
    def write_marks(self) -> int:
        """Write marks over the receiver's weights; return the number of marked tensors, 0 if it cannot."""

    @abstractmethod
    def find_marks(self) -> Sequence[str]:
        """Return the tensors that still hold marks."""

    @abstractmethod
    def version(self) -> str | None:
        """Return the version of the weights that the receiver reports; None if it reports none."""

    def end_update(self) -> bool:
        """End an update that a fault left open; return False if the receiver has no call for that, or refuses it."""
        return False

    @abstractmethod
    def restart(self) -> None:
        """Start the receiver anew. Raises CkptcheckError if it does not start."""

    @abstractmethod
    def close(self) -> None:
        """End everything; may be called twice."""
