"""A transport of the user's own under the kit: a class with five methods, in this process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.faults import (
    Event,
    Fault,
    Interruption,
    Parcel,
    ReceiverLost,
    ReceiverState,
    Reply,
    Subject,
)

REQUIRED = ("begin", "send", "end", "tensors", "version")
"""The five methods."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "sleep": ("sleep", "wake"),
    "generation": ("generate",),
    "kill-receiver": ("kill_receiver",),
}
"""Fault → the further methods that it needs."""
BUCKETS = 4
TIMEOUT = 60.0
"""Seconds that one update may take."""
TOKENS = 3
"""Tokens that the kit takes from a response before the update, and again after it."""


class WeightTransport(Protocol):
    """The class that a user writes. It refuses by raising an exception in any of the first three methods.

    Further methods let the kit try further faults: ``sleep()`` and ``wake()``; ``generate()``, which yields the version of the
    weights that computed each token (None if unknown); ``kill_sender()``, which has the effect of the sender's death;
    ``kill_receiver()``, which ends one receiver; ``close()``. The class is called without arguments, again for every
    restart.
    """

    def begin(self, version: str, names: Sequence[str]) -> None:
        """Begin an update of the weights with these names."""
        ...

    def send(self, bucket: Mapping[str, Any]) -> None:
        """Send a bucket: name → tensor of torch."""
        ...

    def end(self) -> None:
        """End the update, and return when the receiver computes with the new weights."""
        ...

    def tensors(self) -> Iterable[tuple[str, Any]]:
        """Yield the name and the tensor of everything that the receiver holds: the tensors themselves, or else their
        digests.
        """
        ...

    def version(self) -> str | None:
        """Return the version of the weights that the receiver reports; None if it has none."""
        ...


def load_transport(name: str) -> Callable[[], WeightTransport]:
    """Import the class of a transport. name: ``module:Class``, looked up from the working directory on.

    Raises CkptcheckError if it cannot be imported, or lacks one of the five methods.
    """
    module_name, _, class_name = name.partition(":")
    hint = "write module:Class, with a module that Python can import from here"
    if not module_name or not class_name:
        raise CkptcheckError(f"{name} is no class of a transport", hint)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last: the folder may be a download, and no file of it hides a package
    try:
        made = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise CkptcheckError(f"{name} cannot be imported: {type(error).__name__}: {error}", hint) from error
    missing = [method for method in REQUIRED if not callable(getattr(made, method, None))]
    if missing:
        raise CkptcheckError(
            f"{name} has no method {', '.join(missing)}", f"a transport has the methods {', '.join(REQUIRED)}"
        )
    transport: Callable[[], WeightTransport] = made
    return transport


class OwnTransport(Subject):
    """A transport in this process.

    Args:
        make: returns a new transport with its receiver.
        target: its name, as the user wrote it.
        weights: the weights to send, name → tensor of torch; None for random values of the shapes that the receiver holds.
        timeout: seconds that one update may take.

    Raises CkptcheckError if torch is missing, if the transport cannot be made, or with fewer than two tensors.
    """

    def __init__(
        self,
        make: Callable[[], WeightTransport],
        target: str,
        weights: Mapping[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        _require_torch()
        self.target, self._make, self._timeout = target, make, timeout
        self._transport = self._construct()
        try:
            held = {name: tensor for name, tensor in self._transport.tensors() if hasattr(tensor, "dtype")}
        except Exception as error:
            raise CkptcheckError(f"{target} could not list its tensors: {_describe(error)}") from error
        self._layout = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
        sent = dict(held if weights is None else weights)
        if len(sent) < 2:
            raise CkptcheckError(
                f"{target} has {len(sent)} tensors to send, and the kit needs at least two",
                "name a checkpoint whose weights it carries",
            )
        from ckptcheck.live.runtime.worker.ckptcheck_worker.sample_weights import alter, draw

        if weights is None:
            sent = {name: draw(tensor, seed) for seed, (name, tensor) in enumerate(sent.items())}
        self._weights = (sent, {name: alter(tensor) for name, tensor in sent.items()})
        self.buckets: Sequence[Sequence[str]] = split_evenly({name: t.nbytes for name, t in sent.items()}, BUCKETS)
        self.title = f"{len(sent)} tensors in {len(self.buckets)} buckets"
        self._marked: dict[str, str] = {}

    def find_obstacle(self, fault: Fault) -> str:
        """Return why this transport cannot have this fault; "" if it can."""
        missing = [
            method for method in OPTIONAL.get(fault.kind, ()) if not callable(getattr(self._transport, method, None))
        ]
        return f"it has no method {' and '.join(missing)}" if missing else ""

    def update(self, fault: Fault | None, events: Sequence[Event], version: str) -> Reply:
        """Send one update in a thread of its own, because a transport may never return."""
        replies: list[Reply] = []
        kind = fault.kind if fault else ""
        run = self._update_while_generating if kind == "generation" else self._send
        thread = threading.Thread(target=lambda: replies.append(run(events, version)), daemon=True)
        thread.start()
        thread.join(self._timeout)
        if not replies:
            return Reply(False, f"it did not answer within {self._timeout:,.0f} s", has_ended=False)
        return replies[0]

    def _send(self, events: Sequence[Event], version: str) -> Reply:
        transport, names = self._transport, [name for bucket in self.buckets for name in bucket]
        refusal, is_skipping = "", False
        try:
            transport.begin(version, names)
            for event in events:
                if isinstance(event, Parcel):
                    if not is_skipping:
                        transport.send(self._pack(event))
                elif event.kind == "sender-dies":
                    if callable(kill := getattr(transport, "kill_sender", None)):
                        kill()
                    return Reply(False, is_heard=False)
                elif is_skipping:
                    is_skipping = event.kind != "end"
                else:
                    refusal = self._interrupt(event, f"{version}-second", names) or refusal
                    # the sender of a refused second update sends nothing
                    is_skipping = bool(refusal) and event.kind == "begin"
            transport.end()
        except Exception as error:
            return Reply(False, _describe(error))
        return Reply(True, refusal=refusal)

    def _interrupt(self, event: Interruption, version: str, names: Sequence[str]) -> str:
        """Cause an event between two buckets; return how the transport refused it, "" if it did not."""
        transport: Any = self._transport
        if event.kind == "delay":
            time.sleep(event.seconds)
        elif event.kind == "receiver-dies":
            transport.kill_receiver()
        else:
            try:
                if event.kind == "sleep":
                    transport.sleep()
                    transport.wake()
                elif event.kind == "begin":
                    transport.begin(version, names)
                else:
                    transport.end()
            except Exception as error:
                return _describe(error)
        return ""

    def _update_while_generating(self, events: Sequence[Event], version: str) -> Reply:
        transport: Any = self._transport
        try:
            response: Iterator[str | None] = iter(transport.generate())
            before = list(islice(response, TOKENS))
        except Exception as error:
            return Reply(False, f"no response: {_describe(error)}")
        reply = self._send(events, version)
        try:
            after = list(islice(response, TOKENS))
        except Exception as error:
            return Reply(reply.ok, reply.message, note=f'the response ended with "{_describe(error)}"')
        if not reply.ok:
            return reply
        if None in (*before, *after):
            return Reply(True, undetectable="tokens of the response carry no version of the weights that computed them")
        if not after:
            return Reply(True, note="the response ended with the update")
        return Reply(True, note=f"the tokens after the update are of version {after[-1]}, those before of {before[-1]}")

    def _pack(self, parcel: Parcel) -> dict[str, Any]:
        names = self.buckets[parcel.bucket]
        bucket = {name: self._weights[parcel.values][name].clone() for name in names}
        if parcel.lacks_tensor:
            del bucket[names[-1]]
        if parcel.is_cut:
            tensor = bucket[names[-1]]
            bucket[names[-1]] = tensor[: len(tensor) // 2].clone() if tensor.dim() else tensor.new_empty(0)
        return bucket

    def read_state(self) -> ReceiverState:
        """Digest the receiver's tensors. Raises ReceiverLost if it cannot list them."""
        from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import digest

        return ReceiverState({
            name: tensor if isinstance(tensor, str) else digest(tensor) for name, tensor in self._list_tensors()
        })  # fmt: skip

    def expected_state(self, values: int) -> Mapping[str, str]:
        """Return the digests of the sent tensors that the receiver holds in the same form."""
        from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import digest

        return {
            name: digest(tensor)
            for name, tensor in self._weights[values].items()
            if self._layout.get(name) == (tensor.dtype, tuple(tensor.shape))
        }

    def write_marks(self) -> int:
        """Write marks over the receiver's tensors; return 0 if they are copies, so that the marks do not stay."""
        from ckptcheck.live.runtime.worker.ckptcheck_worker import inventory

        _, marked = inventory.scramble_weights(0, self._walk(), ())
        entries = inventory.find_unwritten(0, self._walk(), marked)["entries"]
        held = {entry[0] for entry in entries if entry[1]}
        self._marked = {name: owner for name, owner in marked.items() if name in held}
        return len(self._marked)

    def find_marks(self) -> Sequence[str]:
        """Return the tensors that still hold marks."""
        from ckptcheck.live.runtime.worker.ckptcheck_worker import inventory

        return [entry[0] for entry in inventory.find_unwritten(0, self._walk(), self._marked)["entries"]]

    def _walk(self) -> Iterator[tuple[str, str, Any, str]]:
        return ((name, "parameter", tensor, "") for name, tensor in self._list_tensors() if hasattr(tensor, "dtype"))

    def _list_tensors(self) -> list[tuple[str, Any]]:
        try:
            return list(self._transport.tensors())
        except Exception as error:
            raise ReceiverLost(f"its tensors cannot be listed: {_describe(error)}") from error

    def version(self) -> str | None:
        """Return the version that the receiver reports. Raises ReceiverLost if asking fails."""
        try:
            version = self._transport.version()
        except Exception as error:
            raise ReceiverLost(f"it reports no version any more: {_describe(error)}") from error
        return None if version is None else str(version)

    def restart(self) -> None:
        """Make a new transport. Raises CkptcheckError if that fails."""
        self.close()
        self._transport = self._construct()

    def close(self) -> None:
        """Close the transport if it can be closed."""
        if callable(close := getattr(self._transport, "close", None)):
            with contextlib.suppress(Exception):
                close()

    def _construct(self) -> WeightTransport:
        try:
            return self._make()
        except Exception as error:
            raise CkptcheckError(f"{self.target} cannot be made: {_describe(error)}") from error


def split_evenly(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Split names into so many groups of about the same bytes, in their order; fewer if there are fewer names.

    >>> split_evenly({"a": 1, "b": 1, "c": 2, "d": 9}, 3)
    [['a', 'b'], ['c'], ['d']]
    """
    names, total, done = list(sizes), sum(sizes.values()), 0
    groups: list[list[str]] = [[]]
    for place, name in enumerate(names):
        left = parts - len(groups)
        is_due = done >= total * len(groups) / parts or len(names) - place <= left
        if groups[-1] and left and is_due:
            groups.append([])
        groups[-1].append(name)
        done += sizes[name]
    return groups


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise CkptcheckError("a transport of your own is tried in this process, which needs torch")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
