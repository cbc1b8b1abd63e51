"""The transports: the ways in which weights travel from a trainer into an engine, one row for each engine and way.

A row holds every fact about a transport that another module may need. docs/adding-a-transport.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ckptcheck.errors import CkptcheckError

Sender = Literal["files", "group", "ipc"]
"""The part of the trainer. files: writes the buckets to files, which the engine's worker reads. group: broadcasts the
weights as rank 0 of a process group. ipc: shares its GPU memory by CUDA IPC."""


@dataclass(frozen=True)
class Transport:
    """One way in which weights reach an engine."""

    name: str
    """As users write it: ``--transport NAME``."""
    summary: str
    """The engine's call, for help texts."""
    sender: Sender = "files"
    """What the trainer does (refit/sync.py)."""
    rendezvous: str = ""
    """How the engine joins the group of the sender: a key of `ckptcheck_worker.communicator.JOINS`; "" without a group."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """The devices on which the engine takes weights in this way."""
    needs_launch: bool = False
    """Whether an engine has this transport only if it was started for it."""
    joins_buckets: bool = False
    """Whether the engine gets all buckets as one stream, so that their size makes no difference."""
    has_session: bool = False
    """Whether an update has a beginning and an end at the engine, between which other calls can come."""
    reaches_draft: bool = False
    """Whether a draft model can be updated in this way, from files: by a session of its own, or by its own load_weights."""
    supports_inflight: bool = False
    """Whether the engine takes weights in this way while requests run (``--pause``)."""

    @property
    def needs_unique_id(self) -> bool:
        """Whether the group's address needs the unique id of an NCCL group."""
        return self.rendezvous == "nccl-id"

    @property
    def is_between_gpus(self) -> bool:
        """Whether it carries the weights as the trainer holds them on its GPUs, to an engine on GPUs."""
        return self.devices == ("cuda",)


TRANSPORTS: Mapping[str, tuple[Transport, ...]] = {
    "vllm": (
        Transport("reload", "reload_weights, one call for all buckets", joins_buckets=True, supports_inflight=True),
        Transport(
            "gloo", "the weight-transfer API with a gloo backend of ckptcheck",
            sender="group", rendezvous="gloo", devices=("cpu",), needs_launch=True, has_session=True, reaches_draft=True,
        ),
        Transport(
            "nccl", "the weight-transfer API over NCCL",
            sender="group", rendezvous="nccl-id", devices=("cuda",), needs_launch=True, has_session=True,
        ),
        Transport(
            "ipc", "the weight-transfer API over CUDA IPC",
            sender="ipc", devices=("cuda",), needs_launch=True, has_session=True,
        ),
        Transport("load_weights", "the model's own load_weights, one call a bucket", reaches_draft=True),
    ),
    "sglang": (
        Transport("tensor", "update_weights_from_tensor", has_session=True, reaches_draft=True, supports_inflight=True),
        Transport(
            "flattened_bucket", "update_weights_from_tensor with one buffer a bucket", has_session=True, reaches_draft=True
        ),
        Transport(
            "gloo", "update_weights_from_distributed over gloo",
            sender="group", rendezvous="gloo", has_session=True,
        ),
        Transport(
            "nccl", "update_weights_from_distributed over NCCL",
            sender="group", rendezvous="nccl", devices=("cuda",), has_session=True,
        ),
        Transport("disk", "update_weights_from_disk", joins_buckets=True),
    ),
}  # fmt: skip
"""Engine → its transports, the default first."""


def transports_of(engine: str) -> tuple[Transport, ...]:
    """Return the transports of an engine, the default first. Raises CkptcheckError for an unknown engine."""
    if engine not in TRANSPORTS:
        raise CkptcheckError(f"there is no engine {engine}", f"choose one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[engine]


def find_transport(engine: str, name: str | None) -> Transport:
    """Return a transport of an engine by its name, the default for None. Raises CkptcheckError for one that the engine lacks."""
    transports = transports_of(engine)
    return transports[0] if name is None else select_transport(transports, name, engine)


def select_transport(transports: Sequence[Transport], name: str, engine: str) -> Transport:
    """Return the transport of that name. Raises CkptcheckError without one. engine: for the message."""
    for transport in transports:
        if transport.name == name:
            return transport
    raise CkptcheckError(f"weights do not reach {engine} by {name}", f"choose one of {join_names(transports)}")


def available_transports(engine: str, device: str, launched_for: str = "") -> tuple[Transport, ...]:
    """Return the transports of a running engine. launched_for: the transport that it was started for."""
    return tuple(
        transport
        for transport in transports_of(engine)
        if device in transport.devices and (not transport.needs_launch or transport.name == launched_for)
    )


def require_device(engine: str, name: str, device: str) -> None:
    """Raise CkptcheckError, with what would work, if an engine on this device (cpu, cuda) cannot take weights in this way."""
    transport = find_transport(engine, name)
    if device not in transport.devices:
        usable = [row for row in transports_of(engine) if device in row.devices]
        place = "a CPU" if device == "cpu" else "GPUs"
        direction = "between GPUs" if transport.is_between_gpus else "to a CPU"
        raise CkptcheckError(
            f"{name} carries weights {direction} only, and {engine} computes on {place}",
            f"choose one of {join_names(usable)}",
        )


def describe_transports() -> str:
    """Return the transports of every engine for a help text, the defaults first.

    >>> describe_transports()
    'vllm: reload, gloo, nccl, ipc, load_weights; sglang: tensor, flattened_bucket, gloo, nccl, disk; GPUs only: nccl, ipc'
    """
    parts = [f"{engine}: {join_names(rows)}" for engine, rows in TRANSPORTS.items()]
    between_gpus = dict.fromkeys(row.name for rows in TRANSPORTS.values() for row in rows if row.is_between_gpus)
    return "; ".join([*parts, f"GPUs only: {', '.join(between_gpus)}"])


def join_names(rows: Sequence[Transport]) -> str:
    """Return the names of transports for a message."""
    return ", ".join(transport.name for transport in rows)
